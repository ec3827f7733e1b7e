"""Read, list and write files of any file system that fsspec knows: disks, S3, Google Cloud Storage, HTTP, others."""

import io
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from whiten_runtime.checks import encodable, needing
from whiten_runtime.errors import DataError, UsageError, WhitenError
from whiten_runtime.files.replacing import delete_abandoned, hidden_file, publish_new, replacing
from whiten_runtime.files.writable import PARTIAL, cannot_write

ELSEWHERE = "another --out"

_ATOMIC = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "memory"))
"""Protocols of stores in which a file appears whole when its upload is complete; elsewhere it is renamed."""

_BUFFER = 1 << 20


@dataclass(frozen=True)
class Entry:
    """Describes a file that was found.

    Attributes:
        url: where it is.
        name: its path below the directory that was listed, or its own name.
        size: number of bytes.
        stamp: what the file system gives a file that was changed: an ETag, or the time of the change.
    """

    url: str
    name: str
    size: int
    stamp: str


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it.

    Raises:
        UsageError: the protocol is unknown.
        MissingPackageError: fsspec, or its package for the protocol, is not installed.
    """
    with needing("scale"):
        from fsspec.core import url_to_fs
    try:
        found, path = url_to_fs(url)
    except ImportError as error:
        raise UsageError(f"'{url}': {' '.join(str(error).split())}") from None
    except ValueError as error:
        raise UsageError(f"'{url}' is no path or URL that fsspec knows ({error})") from None
    return found, str(path)


def local_path(url: str) -> Path | None:
    """Return the path of a file of this machine's own file systems; None for a URL of another."""
    if "://" not in url:
        return Path(url).expanduser()
    return Path(url.removeprefix("file://")) if url.startswith("file://") else None


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Turn what a file system raises in the block into one line that names the place.

    Raises:
        UsageError: there is no such file.
        DataError: it cannot be read.
    """
    try:
        yield
    except WhitenError:
        raise
    except FileNotFoundError:
        raise UsageError(f"'{url}' does not exist; check the path") from None
    except Exception as error:  # clients of stores raise classes of their own
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{url}: cannot be read ({reason})") from error


def find(url: str) -> list[Entry]:
    """Return the files that a path, URL or pattern with * names, by name; of a directory, all files below it.

    Names that begin with a dot or underscore, or are in a directory of such a name, are left out of directories.

    Raises:
        UsageError: there is none.
        DataError: the file system cannot be read.
    """
    system, path = file_system(url)
    with reaching(url):
        if "*" in path:
            found = {one: info for one, info in system.glob(path, detail=True).items() if info["type"] == "file"}
            entries = [_entry(system, info, one.rpartition("/")[2]) for one, info in found.items()]
        elif (local := local_path(url)) is not None and local.is_dir():
            entries = [_entry(system, system.info(str(local / name)), name) for name in _names_below(local)]
        elif system.isdir(path):
            top = path.rstrip("/") + "/"
            named = ((_below(one, top), info) for one, info in system.find(path, detail=True).items())
            entries = [_entry(system, info, name) for name, info in named if not _is_hidden(name)]
        else:
            entries = [_entry(system, system.info(path), path.rpartition("/")[2])]
    if not entries:
        raise UsageError(f"'{url}' names no file; name a directory with files, or files")
    return sorted(entries, key=lambda entry: entry.name)


def _names_below(folder: Path) -> list[str]:
    """Return the files below a directory, links followed. One that cannot be read, or leads round, is an error."""

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})")

    found, above = [], {folder.resolve()}
    for top, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        for path in (Path(top, name) for name in folders):
            if path.is_symlink():
                if path.resolve() in above or folder.resolve().is_relative_to(path.resolve()):
                    raise DataError(f"{path}: is a link to {path.resolve()}, whose files are there already; remove it")
                above.add(path.resolve())
        found += [Path(top, name).relative_to(folder).as_posix() for name in files if not _is_hidden(name)]
    return found


def _below(path: str, top: str) -> str:
    return path.removeprefix(top).removeprefix(top.lstrip("/"))


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _entry(system: Any, info: dict[str, Any], name: str) -> Entry:
    if encodable(name) != name:
        raise UsageError(f"{name!r} is a name of a file that is not UTF-8; rename it")
    changed = next((info[key] for key in ("ETag", "etag", "md5Hash", "mtime", "LastModified") if info.get(key)), "")
    url = str(system.unstrip_protocol(info["name"])).removeprefix("file://")
    return Entry(url, name, int(info["size"] or 0), str(changed))


@contextmanager
def opened(url: str) -> Iterator[BinaryIO]:
    """Open a file for reading.

    Raises:
        UsageError: there is no such file.
        DataError: it cannot be read.
    """
    with reaching(url):
        path = local_path(url)
        if path is not None:
            with path.open("rb", buffering=_BUFFER) as file:
                yield file
            return
        system, inside = file_system(url)
        with system.open(inside, "rb") as remote:
            yield io.BufferedReader(remote, _BUFFER)


class Folder:
    """Holds a directory to which files are written; each appears whole or not at all.

    Args:
        url: path or URL; the directory is created when the first file is written.

    Raises:
        UsageError: the path is empty, or the protocol unknown.
    """

    def __init__(self, url: str) -> None:
        if not url.strip():
            raise UsageError("--out is empty; name a directory, such as vectors")
        self.url = url.rstrip("/") or "/"
        self._system, self._path = file_system(self.url)
        self._local = local_path(self.url)

    def place(self, name: str) -> str:
        """Return the path or URL of a file."""
        return f"{self.url}/{name}"

    def names(self) -> set[str]:
        """Return the names of the files in it; none if it does not exist.

        Raises:
            DataError: it cannot be read.
        """
        with reaching(self.url):
            self._system.invalidate_cache()
            try:
                return {str(one).rstrip("/").rpartition("/")[2] for one in self._system.ls(self._path, detail=False)}
            except FileNotFoundError:
                return set()

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none.

        Raises:
            DataError: it cannot be read.
        """
        with reaching(self.place(name)):
            try:
                self._system.invalidate_cache()
                return bytes(self._system.cat_file(f"{self._path}/{name}"))
            except FileNotFoundError:
                return None

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name.

        Raises:
            DataError: nobody can tell.
        """
        with reaching(self.place(name)):
            self._system.invalidate_cache()
            return bool(self._system.exists(f"{self._path}/{name}"))

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Open a file that gets its name, flushed to disk, when the block ends without an error.

        On a disk it is a hidden file beside it that is renamed. Elsewhere it is a temporary file of this machine, which
        is uploaded.

        Raises:
            WhitenError: it cannot be written; the message names it.
        """
        if self._local is not None:
            self._make(self._local)
            with replacing(self._local / name, ELSEWHERE) as file:
                yield file
            return
        try:
            with tempfile.NamedTemporaryFile(prefix="whiten-") as temporary:
                yield temporary  # type: ignore[misc]
                temporary.flush()
                self._upload(temporary.name, f"{self._path}/{name}")
        except WhitenError:
            raise
        except Exception as error:  # clients of stores raise classes of their own
            reason = " ".join(str(error).split()) or type(error).__name__
            raise WhitenError(f"{self.place(name)}: cannot be written ({reason}); check space and access") from error

    def write(self, name: str, content: bytes) -> None:
        """Write a file as `writing` does.

        Raises:
            WhitenError: it cannot be written.
        """
        with self.writing(name) as file:
            file.write(content)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless there is one of this name, and return whether it was written.

        On a disk, one of several processes that do so at once writes it. On a store of objects, two that begin within
        the same moment may both write it, the later over the earlier.

        Raises:
            WhitenError: it cannot be written.
        """
        if self._local is None:
            if self.has(name):
                return False
            self.write(name, content)
            return True
        self._make(self._local)
        target = self._local / name
        with hidden_file(target, ELSEWHERE) as (file, temporary):
            file.write(content)
            return publish_new(file, temporary, target)

    def tidy(self, name: str) -> None:
        """Delete what killed processes left beside a file that `create` wrote."""
        if self._local is not None:
            delete_abandoned(self._local / name)

    def lies_in(self, url: str) -> bool:
        """Return whether `find` would look for files here too: this is the other directory, or below it.

        Args:
            url: path or URL of the other directory.
        """
        if self._local is not None:
            other = local_path(url)
            here, there = self._local.resolve(), other and other.resolve()
            if there is None or not here.is_relative_to(there):
                return False
            return not _is_hidden("/".join(here.relative_to(there).parts))
        system, path = file_system(url.rstrip("/"))
        if type(system) is not type(self._system) or not f"{self._path}/".startswith(f"{path}/"):
            return False
        return not _is_hidden(self._path.removeprefix(path).lstrip("/"))

    def remove(self, name: str) -> None:
        """Delete a file, if there is one."""
        with reaching(self.place(name)):
            if self.has(name):
                self._system.rm_file(f"{self._path}/{name}")

    @staticmethod
    def _make(folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(error, folder, ELSEWHERE) from error

    def _upload(self, source: str, target: str) -> None:
        protocol = self._system.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        if names & _ATOMIC:
            self._system.put_file(source, target)
            return
        folder, _, name = target.rpartition("/")
        hidden = f"{folder}/.{name}{PARTIAL}{secrets.token_hex(4)}"
        self._system.makedirs(folder, exist_ok=True)
        self._system.put_file(source, hidden)
        self._system.mv(hidden, target)
