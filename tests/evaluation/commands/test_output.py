"""Test that files of results appear complete or not at all."""

from pathlib import Path

import pytest

from whiten_evaluation.commands.output import check_writable, write_files
from whiten_runtime.errors import UsageError, WhitenError


def test_files_are_written_and_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "pictures"
    write_files(folder, {"a.svg": b"1", "b.svg": b"2"})
    write_files(folder, {"a.svg": b"3"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a.svg": b"3", "b.svg": b"2"}


def test_failed_write_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name.startswith(".b.svg"):
            raise OSError(28, "No space left on device", str(path))
        return whole(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(WhitenError, match="cannot be written .No space left"):
        write_files(tmp_path, {"a.svg": b"1", "b.svg": b"2"})
    assert not list(tmp_path.iterdir())


def test_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "pictures"):
        with pytest.raises(UsageError, match="cannot be written to; choose another --figures"):
            check_writable(folder, "--figures")
        with pytest.raises(WhitenError, match="cannot be written"):
            write_files(folder, {"a.svg": b"1"})
    check_writable(tmp_path / "new" / "pictures", "--figures")
