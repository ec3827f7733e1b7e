"""Try on Linux what Windows does otherwise: handles, renames and names that it does not have."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.cli import MAIN, python
from support.corpus import sentences
from support.hostile import save_good
from support.hub import TOKEN, Hub

pytestmark = pytest.mark.slow

_PLACE = Path(__file__).parents[1] / "support" / "windows"
LIKE_WINDOWS = os.pathsep.join([str(_PLACE), os.environ.get("PYTHONPATH", "")])

PACKAGES = (
    *("whiten", "whiten_evaluation", "whiten_export", "whiten_models", "whiten_runtime"),
    *("whiten_scale", "whiten_whitening"),
)
"""Packages without the server, some of whose options are for other systems."""


def run_all(folder: Path, commands: Sequence[str], **environment: str) -> None:
    """Run commands in a folder where files are as on Windows; all have to succeed, and nothing to be left over."""
    faults = folder / "faults"
    like = os.environ | {"PYTHONPATH": LIKE_WINDOWS, "WINDOWS_FAULTS": str(faults)} | environment
    for command in commands:
        done = python(MAIN, *command.split(), cwd=folder, env=like)
        assert done.returncode == 0, (command, done.stderr)
        assert not faults.exists(), (command, faults.read_text())
    assert list(folder.glob(".*")) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a corpus, an empty folder and a small network."""
    save_good("bert", tmp_path / "tiny")
    (tmp_path / "corpus.txt").write_text("\n".join(sentences(400)) + "\n", "utf-8")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_that_faults_are_noticed(tmp_path: Path) -> None:
    code = """
import mmap, os
from pathlib import Path
Path("read").write_bytes(b"content")
def fails(action):
    try:
        action()
    except OSError:
        return True
with open("read", "rb") as file:
    assert fails(lambda: os.fsync(file.fileno())) and fails(lambda: Path("read").unlink())
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
assert fails(lambda: Path("read").rename("other"))
mapped.close()
Path("read").rename("other")
Path("first").mkdir(), Path("second").mkdir()
assert fails(lambda: Path("first").rename("second"))
"""
    like = os.environ | {"PYTHONPATH": LIKE_WINDOWS, "WINDOWS_FAULTS": str(tmp_path / "faults")}
    done = python(code, cwd=tmp_path, env=like)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "faults").read_text().splitlines()) == 4


def test_commands_that_write_bundles_do_what_windows_can(folder: Path) -> None:
    fit, to_none = "--corpus corpus.txt --max-sentences all", "--whitening none"
    run_all(
        folder,
        [
            f"export tiny --layers 0 {to_none} --out empty",
            f"export tiny --layers 1 {fit} --out bundle",
            f"export tiny --layers 1 {fit} --precision fp16 --out bundle --force",
            f"export tiny --layers 2 {to_none} --precision int8 --out int8",
            f"refit bundle {fit} --whitening zca --out again",
            f"refit bundle {fit} --out again --force",
            "fit bundle --corpus corpus.txt --out statistics",
            "fit bundle --corpus corpus.txt --out of-two --workers 2",
            "refit bundle --stats statistics --out of-statistics",
            "verify of-statistics",
        ],
    )


def test_commands_that_write_vectors_do_what_windows_can(folder: Path, tiny_bundle: Path) -> None:
    embed = f"embed {tiny_bundle} --input corpus.txt --out vectors"
    run_all(
        folder,
        [
            *(f"{embed}.{ending}{force}" for ending in ("npy", "jsonl", "parquet") for force in ("", " --force")),
            "export of-vectors --from-vectors vectors.npy --out of-vectors",
            "transform of-vectors --input vectors.npy --out whitened.npy",
            f"embed-many {tiny_bundle} --input corpus.txt --out shards --workers 2",
            f"embed-many {tiny_bundle} --input corpus.txt --out shards --workers 2",
        ],
    )


def test_an_adapter_beside_its_base_is_exported_as_on_windows(tmp_path: Path) -> None:
    """Its folder is copied for the comparison with sentence-transformers, which maps the files."""
    save_good("published-adapter", tmp_path / "models" / "model")
    run_all(tmp_path, ["export models/model --out bundle"])


def test_a_bundle_is_pushed_as_on_windows(folder: Path, tiny_bundle: Path, hub: Hub) -> None:
    tokens = {"HF_TOKEN": TOKEN, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "0"}
    run_all(folder, [f"push {tiny_bundle} org/bundle", "info org/bundle"], HF_HUB_DISABLE_XET="1", **tokens)


def test_no_name_is_used_that_windows_does_not_have() -> None:
    packages = [part for package in PACKAGES for part in ("-p", package)]
    code = "import sys; from mypy.main import main; main(args=sys.argv[1:])"
    done = python(code, "--platform", "win32", *packages, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    assert sys.platform == "linux"
