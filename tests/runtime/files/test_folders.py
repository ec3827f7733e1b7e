"""Test which files are found below a directory, where links may lead anywhere."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from whiten_runtime.files.folders import files_below


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
    (folder / link).symlink_to(target, target_is_directory=True)
    assert found(folder) == ["a.txt", "deep/a.txt", "deep/er/a.txt"]


def test_many_cycles_take_no_time(folder: Path) -> None:
    for name in "bcdefghij":
        (folder / "deep" / name).symlink_to("..")
        (folder / name).symlink_to(".")
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


def test_directories_that_may_not_be_read_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path.name == "er":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return names(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(PermissionError):
        found(folder)
