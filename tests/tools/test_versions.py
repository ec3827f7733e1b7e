"""The version stands in pyproject.toml, and what repeats it agrees."""

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VERSION = PROJECT["version"]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def release() -> tuple[str, str]:
    """Return version and date of the newest entry of the changelog."""
    match = re.search(r"^## (\S+) — (\d{4}-\d\d-\d\d|unreleased)$", read("CHANGELOG.md"), re.MULTILINE)
    assert match is not None
    return match[1], match[2]


def test_the_changelog_begins_with_this_version() -> None:
    assert release()[0] == VERSION


def test_the_citation_is_of_this_version_and_day() -> None:
    citation = read("CITATION.cff")
    assert f"\nversion: {VERSION}\n" in citation
    dates = re.findall(r'^date-released: "(.*)"$', citation, re.MULTILINE)
    assert dates == ([] if release()[1] == "unreleased" else [release()[1]])


def test_the_readme_names_this_version() -> None:
    assert re.findall(r"^Version (\S+)\. ", read("README.md"), re.MULTILINE) == [VERSION]


def test_the_npm_package_has_this_version() -> None:
    assert json.loads(read("clients/js/package.json"))["version"] == VERSION


def test_examples_name_images_of_this_version() -> None:
    tags = re.findall(r"whiten-serve:(\S+)", read("examples/serving/kubernetes/deployment.yaml"))
    assert tags == [VERSION]


def test_no_other_file_states_a_version_of_its_own() -> None:
    """`whiten.__version__` reads the installed metadata, which comes from pyproject.toml."""
    packages = [ROOT / name for name in ("evaluation", "export", "models", "runtime", "scale", "serving", "whitening")]
    sources = [path for folder in packages for path in folder.rglob("*.py")]
    assert len(sources) > 150
    stated = re.compile(rf"""__version__\s*=|["']{re.escape(VERSION)}["']""")
    assert [path.name for path in sources if stated.search(path.read_text("utf-8"))] == []


def test_classifiers_name_the_pythons_that_the_release_tries() -> None:
    named = {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)}
    tried = re.search(r"^for minor in ([\d. ]+); do$", read(".ci/release"), re.MULTILINE)
    assert tried is not None
    assert named <= {*tried[1].split()}
    assert min(named, key=lambda name: int(name.partition(".")[2])) == PROJECT["requires-python"].removeprefix(">=")


def test_locks_that_are_named_are_there() -> None:
    """Scripts, workflows, images and pages: a script that names a lost one ends where nobody but a releaser sees it."""
    folders = [ROOT / name for name in (".ci", ".github", "docs", "examples")]
    files = [ROOT / "CONTRIBUTING.md", *(path for folder in folders for path in folder.rglob("*") if path.is_file())]
    texts = [path.read_text("utf-8", errors="ignore") for path in files]
    named = {name for text in texts for name in re.findall(r"requirements/([\w-]+\.lock)", text)}
    assert named == {path.name for path in (ROOT / "requirements").iterdir()}
