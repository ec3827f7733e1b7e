"""Test that files of results appear complete or not at all."""

from pathlib import Path
from typing import IO, Any

import pytest

from whiten_evaluation.commands.output import check_files, write_files
from whiten_runtime.errors import UsageError, WhitenError


def test_files_are_written_and_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "pictures"
    write_files(folder, {"a.svg": b"1", "b.svg": b"2"})
    write_files(folder, {"a.svg": b"3"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a.svg": b"3", "b.svg": b"2"}


def test_failed_write_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Path.open

    def full(path: Path, *mode: str) -> IO[Any]:
        if path.name.startswith(".b.svg"):
            raise OSError(28, "No space left on device", str(path))
        return whole(path, *mode)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(WhitenError, match="/b.svg: cannot be written .No space left.*; free some space"):
        write_files(tmp_path, {"a.svg": b"1", "b.svg": b"2"})
    assert not list(tmp_path.iterdir())


def test_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "pictures"):
        with pytest.raises(UsageError, match="cannot be written; choose another --figures"):
            check_files(folder, ("a.svg",), "another --figures")
        with pytest.raises(WhitenError, match="cannot be written"):
            write_files(folder, {"a.svg": b"1"})
    check_files(tmp_path / "new" / "pictures", ("a.svg",), "another --figures")
