"""Test how places are read and written, and what becomes of errors: a fault of a program is never one of a disk."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

from whiten_runtime.errors import DataError, UsageError, WhitenError
from whiten_scale import places
from whiten_scale.places import Folder, find, opened, reaching


@pytest.fixture(params=["disk", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a directory that does not exist yet."""
    if request.param == "disk":
        yield str(tmp_path / "out")
        return
    from fsspec.implementations.memory import MemoryFileSystem

    yield f"memory://{tmp_path.name}/out"
    MemoryFileSystem.store.clear()


@pytest.mark.parametrize(
    ("error", "action", "kind"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "key"), "written", DataError),
        (TimeoutError(), "written", DataError),
        (ValueError("Invalid\nendpoint"), "written", DataError),
        (type("ClientError", (Exception,), {})("Access Denied"), "written", DataError),
        (FileNotFoundError("key"), "written", DataError),
        (FileNotFoundError("key"), "read", UsageError),
    ],
    ids=repr,
)
def test_errors_of_stores_name_the_place(error: Exception, action: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="s3://here") as caught, reaching("s3://here", action):
        raise error
    assert "\n" not in str(caught.value)


def test_a_killed_upload_is_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Folder(f"memory://{tmp_path.name}/out").writing("a"):
        (waiting,) = tmp_path.iterdir()
        shutil.copy(waiting, tmp_path / f"{waiting.name[:-8]}01234567")
    assert len(list(tmp_path.iterdir())) == 1
    Folder(f"memory://{tmp_path.name}/out").write("b", b"content")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [MemoryError(), KeyError("a"), ConnectionError(), OSError(28, "full")], ids=repr)
def test_errors_of_other_work_stay_as_they_are(url: str, error: Exception) -> None:
    out = Folder(url)
    with pytest.raises(type(error)) as caught, out.writing("a"):
        raise error
    assert caught.value is error
    assert out.names() == set()
    out.write("a", b"content")
    with pytest.raises(type(error)) as caught, opened(out.place("a")):
        raise error
    assert caught.value is error


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_told(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(WhitenError, match=str(tmp_path if "memory" in url else f"{url}/a")):
        fill_disk(Folder(url))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def fill_disk(out: Folder) -> None:
    """Write a file to a device that is full."""
    with Path("/dev/full").open("wb") as full, out.writing("a") as file:
        os.dup2(full.fileno(), file.fileno())
        file.write(b"content")


@pytest.mark.parametrize("name", ["put_file", "mv"])
def test_a_store_that_refuses_an_upload_is_told(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Access Denied")

    monkeypatch.setattr(places, "_ATOMIC", frozenset[str]())
    out = Folder("memory://refused")
    monkeypatch.setattr(out._system, name, refuse)
    with pytest.raises(DataError, match=r"memory://.*/a"):
        out.write("a", b"content")


def test_files_are_read_as_they_were_written(url: str) -> None:
    out, content = Folder(url), b"line\n" * 500_000 + b"end"
    out.write("a", content)
    with opened(out.place("a")) as file:
        assert file.readline() == b"line\n"
        assert file.tell() == 5
        assert file.seek(-3, os.SEEK_END) == len(content) - 3
        assert file.read() == b"end"
        file.seek(0)
        assert b"".join(file) == content
    assert file.closed
    assert [entry.size for entry in find(url)] == [len(content)]


def test_links_are_followed_but_not_into_a_circle(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("one")
    (tmp_path / "in" / "self").symlink_to(".")
    (tmp_path / "in" / "deep" / "up").symlink_to("../../in")
    (tmp_path / "in" / "link.txt").symlink_to("a.txt")
    assert [entry.name for entry in find(str(tmp_path / "in"))] == ["a.txt", "link.txt"]
    (tmp_path / "in" / "own.txt").symlink_to("own.txt")
    with pytest.raises(WhitenError, match=r"own\.txt"):
        find(str(tmp_path / "in"))


@pytest.mark.parametrize("name", ["a.txt", "README", "folder"])
@pytest.mark.parametrize("given", ["in", "in/{}", "in/*", "in/../in", "*/*"])
def test_a_broken_link_is_named(tmp_path: Path, name: str, given: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.txt").write_text("one")
    (tmp_path / "in" / name).symlink_to("nowhere")
    with pytest.raises(UsageError, match=f"in/{name}'"):
        find(str(tmp_path / given.format(name)))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize("given", ["in", "in/a.txt", "in/link.txt", "in/*.txt"])
def test_pipes_are_refused_and_not_waited_for(tmp_path: Path, given: str) -> None:
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in" / "pipe")
    (tmp_path / "in" / "b.txt").write_text("one")
    assert [entry.name for entry in find(str(tmp_path / "in"))] == ["b.txt", "pipe"]
    os.mkfifo(tmp_path / "in" / "a.txt")
    (tmp_path / "in" / "link.txt").symlink_to("pipe")
    with pytest.raises(UsageError, match=r"in/(a|link)\.txt'"):
        find(str(tmp_path / given))


STAMPS = [
    *("ETag", "etag", "md5Hash", "blob_id", "sha", "Content-MD5", "Digest"),
    *("mtime", "LastModified", "Last-Modified", "last_modified", "modified", "modify", "modificationTime", "created"),
]
"""What file systems call it: s3fs, adlfs, gcsfs, Hugging Face, GitHub, HTTP; sftp, HTTP, adlfs, WebDAV, FTP, HDFS."""


@pytest.mark.parametrize("name", STAMPS)
def test_the_time_or_hash_of_every_file_system_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    out = Folder("memory://stamps")
    for value in ("one", "two"):
        info = {"name": "/stamps/a.txt", "size": 1, "type": "file", name: value}
        monkeypatch.setattr(type(out._system), "info", lambda self, path, info=info: info)
        assert places.look_up(out.place("a.txt")).stamp == value


def test_a_file_that_is_created_is_that_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [bytes([65 + number]) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(lambda content: Folder(str(tmp_path / "out")).create("a", content), contents))
    written = (tmp_path / "out" / "a").read_bytes()
    assert written in contents
    Folder(str(tmp_path / "out")).create("a", b"later")
    assert (tmp_path / "out" / "a").read_bytes() == written
    monkeypatch.setattr(os, "link", lambda *paths: Path("/nowhere/at/all").stat())  # a disk without hard links
    for content in (b"first", b"second"):
        Folder(str(tmp_path / "out")).create("b", content)
        Folder(f"memory://{tmp_path.name}").create("b", content)
    assert (tmp_path / "out" / "b").read_bytes() == Folder(f"memory://{tmp_path.name}").read("b") == b"first"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a", "b"]


def test_errors_of_reading_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"content")
    with opened(str(tmp_path / "a")) as file:
        with Path("/proc/self/mem").open("rb") as unreadable:
            os.dup2(unreadable.fileno(), file.raw._file.fileno())  # type: ignore[attr-defined]
        with pytest.raises(DataError, match=str(tmp_path / "a")):
            file.read()
    for name in ("nowhere", "."):
        with pytest.raises(WhitenError, match=str(tmp_path / name)):
            opened(str(tmp_path / name))
