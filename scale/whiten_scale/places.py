"""List, read and write files on disks, S3, Google Cloud Storage and whatever else fsspec knows."""

import io
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from whiten_runtime.errors import FAULTS, DataError, UsageError, WhitenError, encodable, kind_of_place, needing
from whiten_runtime.files.judged import files_below
from whiten_runtime.files.replacing import delete_abandoned, flush, hidden_file, replacing, sync_folder, written_as
from whiten_runtime.files.rows import kind_of

ELSEWHERE = "another --out"
_OTHER_TEMPORARY = "another TMPDIR"

_ATOMIC = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "memory"))
"""Protocols of stores in which a file appears whole when its upload is complete; elsewhere it is renamed."""

_STAMPS = (
    *("ETag", "etag", "md5Hash", "blob_id", "sha", "Content-MD5", "Digest"),
    *("mtime", "LastModified", "Last-Modified", "last_modified", "modified", "modify", "modificationTime", "created"),
)
"""Names under which file systems give what changes when a file is written again: hashes, then times."""

_BUFFER = 1 << 20

_UPLOAD = "whiten-upload"
"""Name after which files that wait for their upload are named."""

_HIDDEN = (".", "_")
"""Beginnings of the names of files and directories that are left out of directories."""


@dataclass(frozen=True)
class Entry:
    """A file that a place holds."""

    url: str
    name: str  # its path below the directory that was listed, or its own name
    size: int
    stamp: str  # its ETag, or the time of its last change; empty where the file system has none


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it."""
    with needing("scale"):
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem
    if "://" not in url:  # a path, which url_to_fs would cut at ::
        return LocalFileSystem(), str(LocalFileSystem._strip_protocol(url))
    try:
        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UsageError(f"'{url}' is no path or URL that fsspec knows ({' '.join(str(error).split())})") from None
    return system, str(path)


def _protocols(system: Any) -> set[str]:
    return {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)


def _is_local(system: Any) -> bool:
    return "file" in _protocols(system)


@contextmanager
def reaching(url: str, action: Literal["read", "written"] = "read") -> Iterator[None]:
    """Turn what a file system raises into one line that names the place; the block does nothing but call it."""
    try:
        yield
    except (WhitenError, *FAULTS):
        raise
    except Exception as error:  # clients of stores raise classes of their own
        if action == "read" and isinstance(error, FileNotFoundError):
            raise UsageError(f"'{url}' does not exist; check the path") from None
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{url}: cannot be {action} ({reason}); check space and access") from error


def find(url: str) -> list[Entry]:
    """Return the files that a path, URL or pattern with * names, by name; of a directory, all files below it.

    Names that begin with a dot or underscore, or are in a directory of such a name, are left out of directories.
    """
    system, path = file_system(url)
    with reaching(url):
        if "*" in path:
            # infos of glob do not follow links
            infos = (_info(system, address, address) for address in system.glob(path))
            entries = [
                _entry(system, info, info["name"].rpartition("/")[2]) for info in infos if info["type"] != "directory"
            ]
        elif system.isdir(path):
            path = os.path.realpath(path) if _is_local(system) else path
            # fsspec's own search leaves linked and closed directories out silently
            names = map(str, files_below(Path(path), _HIDDEN)) if _is_local(system) else system.find(path)
            entries = [
                _entry(system, _info(system, address, address), name)
                for address in names
                if not _is_hidden(name := _below(address, path))
            ]
        else:
            entries = [_entry(system, _info(system, path, url), path.rpartition("/")[2])]
    if not entries:
        raise UsageError(f"'{url}' names no file; name a directory with files, or files")
    return sorted(entries, key=lambda entry: entry.name)


def look_up(url: str) -> Entry:
    """Return a file's size and stamp as they are now."""
    system, path = file_system(url)
    with reaching(url):
        system.invalidate_cache()
        return _entry(system, system.info(path), path.rpartition("/")[2])


def _info(system: Any, address: str, url: str) -> dict[str, Any]:
    """Return what a file system says of a file; errors name it by `url`."""
    with reaching(url):
        try:
            return dict(system.info(address))
        except FileNotFoundError:
            if _is_local(system) and Path(address).is_symlink():
                raise UsageError(f"'{url}' is a link to what does not exist; mend or remove it") from None
            raise


def _below(path: str, folder: str) -> str:
    return path.strip("/").removeprefix(folder.strip("/")).lstrip("/")


def _is_hidden(name: str) -> bool:
    return any(part.startswith(_HIDDEN) for part in name.split("/"))


def _entry(system: Any, info: dict[str, Any], name: str) -> Entry:
    if encodable(name) != name:
        raise UsageError(f"{name!r} is a name of a file that is not UTF-8; rename it")
    url = str(system.unstrip_protocol(info["name"])).removeprefix("file://")
    if info["type"] == "other" and kind_of(name):  # opening a pipe would wait for ever
        raise UsageError(f"'{url}' is a pipe, socket or device, which cannot be read twice; name a regular file")
    return Entry(url, name, int(info["size"] or 0), str(next(filter(None, map(info.get, _STAMPS)), "")))


class _Source(io.RawIOBase):
    """Reads an open file; errors name the place."""

    def __init__(self, url: str, file: Any) -> None:
        self._url, self._file = url, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with reaching(self._url):
            return int(self._file.readinto(buffer))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with reaching(self._url):
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        super().close()
        self._file.close()


def opened(url: str) -> BinaryIO:
    """Open a file for reading."""
    system, path = file_system(url)
    with reaching(url):  # fsspec's own objects of local files read lines slowly
        file = io.FileIO(path) if _is_local(system) else system.open(path, "rb")
    return io.BufferedReader(_Source(url, file), _BUFFER)


class Folder:
    """Writes files into a directory, which is created with the first; each file appears whole or not at all."""

    def __init__(self, url: str) -> None:
        if not url.strip():
            raise UsageError("--out is empty; name a directory, such as vectors")
        self.url = url.rstrip("/") or "/"
        self._system, self._path = file_system(self.url)
        self._local = None
        if _is_local(self._system):
            kind_of_place(Path(self._path))  # refuses a loop of links, before it is followed
            self._local = Path(self._path).resolve()

    @property
    def address(self) -> str:
        """Return its URL, or a path that does not depend on the directory of the process."""
        return self._path if self._local else self.url

    def place(self, name: str) -> str:
        """Return the path or URL of a file."""
        return f"{self.url}/{name}"

    def names(self) -> set[str]:
        """Return the names of the files in it; none if it does not exist."""
        return set(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Return the bytes of the files in it by name; none if it does not exist."""
        with reaching(self.url):
            self._system.invalidate_cache()
            sizes = dict[str, int]()
            with suppress(FileNotFoundError):
                if self._local is None:
                    infos = self._system.ls(self._path, detail=True)
                    return {str(info["name"]).rstrip("/").rpartition("/")[2]: int(info["size"] or 0) for info in infos}
                for path in self._local.iterdir():
                    with suppress(FileNotFoundError):  # a hidden file that another process has just renamed
                        sizes[path.name] = path.stat().st_size
            return sizes

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        with reaching(self.place(name)):
            try:
                return bytes(self._system.cat_file(f"{self._path}/{name}"))
            except FileNotFoundError:
                return None

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name."""
        with reaching(self.place(name)):
            self._system.invalidate_cache()
            return bool(self._system.exists(f"{self._path}/{name}"))

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Open a file that gets its name when the block ends without an error.

        On a disk it is a hidden file that is flushed and renamed; elsewhere a temporary file of this machine, which is
        uploaded.
        """
        if self._local is not None:
            with written_as(self._local, ELSEWHERE):
                self._local.mkdir(parents=True, exist_ok=True)
            with replacing(self._local / name, ELSEWHERE) as file:
                yield file
            return
        place = Path(tempfile.gettempdir())
        with hidden_file(place / _UPLOAD, _OTHER_TEMPORARY, named=place) as (file, _):
            Path(file.name).chmod(0o600)
            yield file
            with written_as(place, _OTHER_TEMPORARY):
                file.flush()
            with reaching(self.place(name), "written"):
                self._upload(file.name, name)

    def write(self, name: str, content: bytes) -> None:
        """Write a file as `writing` does."""
        with self.writing(name) as file:
            file.write(content)

    def delete_abandoned(self) -> None:
        """Delete what killed processes left on a disk."""
        if self._local is not None:
            delete_abandoned(self._local, "*")

    def delete(self, name: str) -> None:
        """Delete a file if it is there."""
        with reaching(self.place(name), "written"), suppress(FileNotFoundError):
            self._system.rm_file(f"{self._path}/{name}")

    def create(self, name: str, content: bytes) -> None:
        """Write a file as `write` does, unless there is one of this name.

        Of several processes that do so at once, the first one writes it; in stores, and on disks without hard links,
        the last one.
        """
        if self._local is None:
            if not self.has(name):
                self.write(name, content)
            return
        with written_as(self._local, ELSEWHERE):
            self._local.mkdir(parents=True, exist_ok=True)
        with hidden_file(self._local / name, ELSEWHERE) as (file, publish):
            file.write(content)
            with written_as(self._local / name, ELSEWHERE):
                flush(file)
            try:
                os.link(file.name, self._local / name)
            except FileExistsError:
                return
            except OSError:
                if not self.has(name):
                    publish()
            else:
                sync_folder(self._local)

    def holds(self, entry: Entry) -> bool:
        """Return whether a file that was found lies in it, or in a directory below it; links do not hide that."""
        if self._local is None:
            return entry.url.startswith(f"{self._system.unstrip_protocol(self._path)}/")
        if "://" in entry.url:
            return False
        path = Path(entry.url)
        return any(place.is_relative_to(self._local) for place in (path.parent.resolve() / path.name, path.resolve()))

    def _upload(self, source: str, name: str) -> None:
        if _protocols(self._system) & _ATOMIC:
            self._system.put_file(source, f"{self._path}/{name}")
            return
        hidden = f"{self._path}/.{name}-{secrets.token_hex(4)}"
        self._system.makedirs(self._path, exist_ok=True)
        self._system.put_file(source, hidden)
        self._system.mv(hidden, f"{self._path}/{name}")
