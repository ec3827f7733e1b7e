"""Hash the files of a bundle for model-signing: all that a signature has to cover, and no others."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.signature import SIGNATURE_FILE, UNSIGNED_FILES, unlisted_files
from whiten_runtime.errors import SignatureError
from whiten_runtime.files.replacing import is_partial_of

_SHOWN = 5
"""Number of names that a message has at most."""


class ListedFiles:
    """Stands in for `model_signing.hashing.Config`, and hashes listed files by SHA-256. Links are followed: the hub's
    cache is made of them.

    Args:
        root: the bundle's directory.
        names: POSIX paths of the files that have to be signed.

    Attributes:
        found: SHA-256 of the files by their POSIX paths, once they were hashed. model-signing hashes them after it has
            checked who made the signature.
    """

    def __init__(self, root: Path, names: Iterable[str]) -> None:
        from model_signing import hashing

        self._root = root
        self._names = tuple(names)
        self.found: dict[str, str] = {}
        ignored = map(Path, (SIGNATURE_FILE, *sorted(UNSIGNED_FILES)))
        self._config = hashing.Config().set_ignored_paths(paths=ignored).set_allow_symlinks(True)

    def hash(self, model_path: Path, *, files_to_hash: Iterable[Path] | None = None) -> Any:
        """Return the hashes of the files.

        Args:
            model_path: the bundle's directory.
            files_to_hash: files that a signature covers, when it is checked; None when one is made.

        Raises:
            SignatureError: the signature does not cover a file that it has to.
        """
        wanted = [self._root / name for name in self._names]
        if files_to_hash is not None:
            covered = list(files_to_hash)
            known = set(map(Path, covered))
            missing = [path.relative_to(self._root).as_posix() for path in wanted if path not in known]
            if missing:
                raise SignatureError(
                    f"{self._root}: its signature does not cover {some_names(missing)}; remove what is not of the "
                    "bundle, get it from its author again, or sign it"
                )
            wanted = covered
        for path in wanted:
            if path.exists() and not path.is_file():  # reading a pipe would wait
                raise SignatureError(f"{path}: not as it was signed: no regular file; get the bundle again")
        hashed = self._config.hash(model_path, files_to_hash=wanted)
        self.found = {str(one.identifier): one.digest.digest_hex for one in hashed.resource_descriptors()}
        return hashed

    def add_ignored_paths(self, *, model_path: Path, paths: Iterable[str | PathLike[str]]) -> None:
        """Ignore what the signature says was ignored; what it has to cover is checked in `hash`."""
        self._config.add_ignored_paths(model_path=model_path, paths=paths)


def foreign_files(root: Path, manifest: Manifest, signature: Path) -> tuple[str, ...]:
    """Return the POSIX paths, sorted, of files in a bundle's folder that no signature may pass over.

    These are all that `unlisted_files` returns, but signatures that a killed process has not finished: their hidden
    files are of no use to any program, and the next signature deletes them.

    Args:
        root: the bundle's directory.
        manifest: its manifest.
        signature: file of the signature, which may have any name.
    """
    signatures = (root / SIGNATURE_FILE, signature)
    return tuple(
        name
        for name in unlisted_files(root, manifest, signature)
        if not any(is_partial_of(root / name, target) for target in signatures)
    )


class _Envelope(msgspec.Struct):
    payload: str


class _SignatureFile(msgspec.Struct, rename="camel"):
    dsse_envelope: _Envelope


class _Resource(msgspec.Struct):
    name: str
    digest: str


class _Predicate(msgspec.Struct):
    resources: tuple[_Resource, ...]


class _Statement(msgspec.Struct):
    predicate: _Predicate


def some_names(names: Sequence[str]) -> str:
    """Return the first names of files, for a message."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def is_signature(content: bytes) -> bool:
    """Return whether the content of a file has the form of a signature; nothing in it is checked."""
    try:
        msgspec.json.decode(content, type=_SignatureFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def changed_files(signature: bytes, found: Mapping[str, str]) -> list[str]:
    """Return the names of files that are not as a signature states, for a message; none where nothing was hashed.

    Args:
        signature: content of a signature whose author was checked.
        found: SHA-256 of the files by their POSIX paths.
    """
    if not found:
        return []
    payload = msgspec.json.decode(signature, type=_SignatureFile).dsse_envelope.payload
    stated = msgspec.json.decode(base64.b64decode(payload), type=_Statement).predicate.resources
    return [one.name for one in stated if found.get(one.name) != one.digest]
