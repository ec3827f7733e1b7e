"""Test that files are replaced as a whole, and that nothing of killed processes stays."""

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from support.cli import MAIN, python
from whiten_runtime.errors import WhitenError
from whiten_runtime.files.replacing import Written, filling, replace_file, replacing

_KILLED = """
import os, signal, sys
from pathlib import Path
from whiten_runtime.files.replacing import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    print(flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.name == "nt", reason="files cannot be locked")
def test_hidden_files_of_killed_processes_are_deleted_and_those_of_others_stay(tmp_path: Path) -> None:
    target = tmp_path / "a[1].txt"
    command = [sys.executable, "-c", _KILLED, target]
    assert subprocess.run([*command, "kill"], check=False).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    with subprocess.Popen([*command, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        replace_file(target, b"mine")
        assert len(list(tmp_path.iterdir())) == 2  # the other's hidden file, and the target
        assert target.read_bytes() == b"mine"
        other.communicate()
    assert target.read_bytes() == b"half"
    assert list(tmp_path.iterdir()) == [target]


def unflushable(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fsync of directories fail with an error."""
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES])
def test_file_systems_that_do_not_flush_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    unflushable(number, monkeypatch)
    replace_file(tmp_path / "a", b"content")
    assert (tmp_path / "a").read_bytes() == b"content"


def test_a_folder_is_flushed_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unflushable(errno.EIO, monkeypatch)
    with pytest.raises(WhitenError, match="Input/output error"):
        replace_file(tmp_path / "a", b"content")
    assert (tmp_path / "a").read_bytes() == b"content"


def test_a_file_is_flushed_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that does not take its content leaves the earlier file as it is."""
    (tmp_path / "a").write_bytes(b"earlier")

    def refuse(descriptor: int) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(WhitenError, match="Input/output error"):
        replace_file(tmp_path / "a", b"content")
    assert (tmp_path / "a").read_bytes() == b"earlier"


@pytest.mark.parametrize("call", ["fsync", "open", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO, errno.ELOOP])
def test_errors_name_the_file_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    target = tmp_path / "v.npy"

    def fail(*arguments: object, **named: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(
        *{"fsync": (os, "fsync"), "open": (Written, "__init__"), "replace": (Path, "replace")}[call], fail
    )
    with pytest.raises(WhitenError) as caught, replacing(target) as file:
        file.write(b"content")
    assert str(caught.value).startswith(f"{target}: ")
    assert os.strerror(number) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("length", [3, 1 << 20])
def test_a_full_disk_is_told(tmp_path: Path, length: int) -> None:
    with pytest.raises(WhitenError, match="v: .*No space left on device"):
        fill_disk(tmp_path / "v", length)
    assert list(tmp_path.iterdir()) == []


def fill_disk(path: Path, length: int) -> None:
    """Write a file to a device that is full."""
    with Path("/dev/full").open("wb") as full, replacing(path) as file:
        os.dup2(full.fileno(), file.fileno())
        file.write(bytes(length))


OTHERS = (MemoryError(), KeyError("name"), TimeoutError("timed out"), OSError("odd"), OSError(errno.EACCES, "no", 7))
"""Errors of other work, among them those of the system that name no file, or a descriptor."""


@pytest.mark.parametrize("error", [*OTHERS, OSError(errno.ENOSPC, "no")], ids=repr)
def test_errors_of_other_work_stay_as_they_are(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, replacing(tmp_path / "v"):
        raise error
    assert caught.value is error
    assert list(tmp_path.iterdir()) == []
    if error in OTHERS:
        with pytest.raises(type(error)) as caught, filling(tmp_path / ".hidden", tmp_path / "out"):
            raise error
        assert caught.value is error


@pytest.mark.parametrize("place", [".", "out"])
def test_errors_of_files_that_are_read_stay_as_they_are(tmp_path: Path, place: str) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(FileNotFoundError), replacing(tmp_path / place / "v"):
        (tmp_path / "in.txt").read_bytes()
    with pytest.raises(FileNotFoundError), filling(tmp_path / place / ".hidden", tmp_path / place / "v"):
        (tmp_path / "in.txt").read_bytes()


@pytest.mark.parametrize(("number", "name"), [(errno.ENOSPC, None), (errno.EACCES, "a"), (errno.EMFILE, "onnx/a")])
@pytest.mark.parametrize("kind", [str, os.fsencode])
def test_errors_of_files_in_a_folder_that_is_filled(
    tmp_path: Path, number: int, name: str | None, kind: Callable[[Path], str | bytes]
) -> None:
    place = name and kind(tmp_path / name)
    with pytest.raises(WhitenError, match="out: cannot be written"), filling(tmp_path, Path("out"), "another --out"):
        raise OSError(number, os.strerror(number), place)


def test_a_limit_of_file_sizes_is_named(tiny_bundle: Path, tmp_path: Path) -> None:
    limit = "import resource, signal; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000));"
    limit += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    out = tmp_path / "v.jsonl"
    done = python(limit + MAIN, "embed", tiny_bundle, *["a text"] * 20, "--out", out)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {out}: ")
    assert "File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="modes are of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o400])
def test_a_file_that_replaces_another_has_its_mode_and_group(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "v.npy"
    replace_file(target, b"first")
    new = stat.S_IMODE(target.stat().st_mode)
    target.chmod(mode)
    group = target.stat().st_gid
    for content in (b"second", b"third"):
        replace_file(target, content)
        assert (stat.S_IMODE(target.stat().st_mode), target.stat().st_gid) == (mode, group)
    target.unlink()
    replace_file(target, b"new")
    assert stat.S_IMODE(target.stat().st_mode) == new
