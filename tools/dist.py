"""Check what a wheel and a source distribution hold: `python tools/dist.py FOLDER`, which has one of each.

Prints a line for each problem, and exits with 1 if there is one. Standard library only.
"""

import re
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).parents[1]

NEEDED = (
    *(
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "LICENSE",
    ),
    *("SECURITY.md", "constraints.txt", "docs/README.md", "requirements/runtime.lock", "tests/conftest.py"),
    *("benchmarks/README.md", "clients/js/package.json", "examples/edge/install.sh", "tools/dist.py", ".ci/run"),
    *("mkdocs.yml", ".github/workflows/ci.yml"),
)
"""Files that a source distribution must have, besides those of the packages."""

UNWANTED = re.compile(
    r"(^|/)(__pycache__|node_modules|bundles|build|dist|\.git|\.pytest_cache|\.mypy_cache|\.ruff_cache|\.venv[^/]*)/"
    r"|\.(pyc|pyo|so|orig|rej|swp)$|(^|/)\.DS_Store$"
)
"""Paths that neither may have."""


def project() -> dict[str, object]:
    """Return the content of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def packages(content: dict[str, object]) -> dict[str, Path]:
    """Return the folders of the packages by name."""
    tool = content["tool"]
    assert isinstance(tool, dict)
    return {Path(path).name: ROOT / path for path in tool["hatch"]["build"]["targets"]["wheel"]["packages"]}


def sources(content: dict[str, object]) -> set[str]:
    """Return the files of the packages, as a wheel names them."""
    return {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in packages(content).items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def wheel_problems(wheel: Path) -> list[str]:
    """Return what is wrong with a wheel: one line each."""
    content = project()
    table = content["project"]
    assert isinstance(table, dict)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        head = f"{table['name']}-{table['version']}.dist-info"
        if f"{head}/METADATA" not in names:
            return [f"{wheel.name} has no {head}/METADATA: it is of another version than pyproject.toml's"]
        metadata = HeaderParser().parsestr(archive.read(f"{head}/METADATA").decode())
        commands = archive.read(f"{head}/entry_points.txt").decode() if f"{head}/entry_points.txt" in names else ""
    inside = {name for name in names if not name.startswith(f"{head}/")}
    wanted = sources(content)
    licences = [f"{head}/licenses/{path}" for path in table["license-files"]]
    found = [f"{name} is missing" for name in sorted((wanted | {*licences}) - names)]
    found += [f"{name} is no file of a package" for name in sorted(inside - wanted)]
    found += [f"{name} is unwanted" for name in sorted(names) if UNWANTED.search(name)]
    found += [f"{name}/py.typed is missing" for name in packages(content) if f"{name}/py.typed" not in names]
    found += [
        f"the command {name} is missing" for name in table["scripts"] if not re.search(rf"^{name} = ", commands, re.M)
    ]
    facts = {"License-Expression": table["license"], "Requires-Python": table["requires-python"]}
    return found + [
        f"{name} is {metadata[name]}, but pyproject.toml has {value}"
        for name, value in facts.items()
        if metadata[name] != value
    ]


def sdist_problems(sdist: Path) -> list[str]:
    """Return what is wrong with a source distribution: one line each."""
    content = project()
    table = content["project"]
    assert isinstance(table, dict)
    top = f"{table['name']}-{table['version']}"
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    found = [f"{member.name} is outside {top}" for member in members if member.name.split("/")[0] != top]
    found += [f"{member.name} is no regular file" for member in members if not member.isfile()]
    folders = packages(content)
    files = {f"{folders[name.split('/')[0]].parent.relative_to(ROOT).as_posix()}/{name}" for name in sources(content)}
    found += [f"{name} is missing" for name in sorted(({*NEEDED, *table["license-files"]} | files) - names)]
    return found + [f"{name} is unwanted" for name in sorted(names) if UNWANTED.search(name)]


def main() -> int:
    """Check the distributions of a folder; return the exit code."""
    if len(sys.argv) != 2:
        print("usage: python tools/dist.py FOLDER", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    found = []
    for ending, problems in ((".whl", wheel_problems), (".tar.gz", sdist_problems)):
        files = sorted(folder.glob(f"*{ending}"))
        if len(files) != 1:
            found.append(f"{folder} has {len(files)} files *{ending}; wanted one")
        found += [f"{file.name}: {problem}" for file in files for problem in problems(file)]
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
