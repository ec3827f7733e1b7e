"""Test which files are found below a directory, and that a place which cannot be written is refused before the work."""

from pathlib import Path

import pytest

from support.cli import invoke
from whiten_runtime.commands.console import whiten
from whiten_runtime.files.judged import files_below
from whiten_runtime.files.replacing import check_file_place, check_folder_place

NOWHERE = Path("/proc/whiten")
"""A name in a folder where nobody can create files, though os.access says that root can."""

without_proc = pytest.mark.skipif(not NOWHERE.parent.is_dir(), reason="there is no /proc")


def test_places_that_can_be_written_are_left_as_they_were(tmp_path: Path) -> None:
    check_file_place(tmp_path / "v.npy")
    check_folder_place(tmp_path / "b")
    check_folder_place(tmp_path / "new" / "deep" / "b")
    (tmp_path / "there").mkdir()
    check_folder_place(tmp_path / "there")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@without_proc
@pytest.mark.parametrize(
    "options",
    [
        ("sweep", "minilm", "--data", "TMP", "--out", NOWHERE),
        ("embed", "BUNDLE", "--input", "TEXTS", "--out", "/proc/v.npy"),
        ("fit", "BUNDLE", "--corpus", "TEXTS", "-o", "/proc/s.safetensors"),
        ("refit", "BUNDLE", "--corpus", "TEXTS", "--out", NOWHERE / "deep"),
        ("export", "minilm", "--out", NOWHERE),
    ],
)
def test_commands_refuse_it_before_the_work(golden: Path, tmp_path: Path, options: tuple[object, ...]) -> None:
    (tmp_path / "t.txt").write_text("one\ntwo\n")
    stands_for = {"BUNDLE": golden / "bundle-v1", "TMP": tmp_path, "TEXTS": tmp_path / "t.txt"}
    refused = invoke(whiten, *(stands_for.get(str(word), word) for word in options))
    assert (refused.exit_code, refused.stdout) == (1, "")
    (line,) = refused.stderr.splitlines()
    assert str(options[-1]) in line


def found(folder: Path, *hidden: str) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in files_below(folder, hidden))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a file in itself, and in two directories, one in the other."""
    (tmp_path / "in" / "deep" / "er").mkdir(parents=True)
    for place in (".", "deep", "deep/er"):
        (tmp_path / "in" / place / "a.txt").write_text("one\ntwo\n")
    return tmp_path / "in"


@pytest.mark.parametrize(
    ("link", "target"),
    [("self", "."), ("deep/up", ".."), ("deep/er/top", "../../../in"), ("deep/er/round", "../../deep")],
)
def test_links_to_directories_that_they_lie_in_are_not_followed(folder: Path, link: str, target: str) -> None:
    for number in range(9):  # many cycles take no time
        (folder / f"{link}{number}").symlink_to(target, target_is_directory=True)
    assert found(folder) == ["a.txt", "deep/a.txt", "deep/er/a.txt"]


def test_other_links_are_followed_and_each_gives_its_files(folder: Path) -> None:
    (folder / "again").symlink_to("deep/er")
    (folder / "deep" / "file.txt").symlink_to("a.txt")
    (folder / "broken.txt").symlink_to("nowhere")
    assert found(folder) == [
        "a.txt", "again/a.txt", "broken.txt", "deep/a.txt", "deep/er/a.txt", "deep/file.txt"
    ]  # fmt: skip


def test_hidden_directories_are_left_out(folder: Path) -> None:
    (folder / "deep" / "er").rename(folder / "deep" / ".er")
    assert found(folder, ".") == ["a.txt", "deep/a.txt"]
    assert found(folder, ".", "d") == ["a.txt"]
    assert len(found(folder)) == 3
