"""Name the files of a bundle that a signature covers, and the file of the signature itself."""

from pathlib import Path

from whiten_runtime.bundle.manifest import MANIFEST_FILE, Manifest
from whiten_runtime.bundle.stray_files import files_in

SIGNATURE_FILE = "model.sig"
"""File of a bundle's signature; the manifest does not list it, since a bundle is signed after it is written."""

UNSIGNED_FILES = frozenset({"README.md"})
"""Files that no signature covers: people edit the card, on the hub too, after a bundle is signed."""

_GIT = ".git"
"""Beginning of the names of git's files and folders, such as .gitattributes, which the hub makes."""


def signed_files(manifest: Manifest) -> tuple[str, ...]:
    """Return the POSIX paths, sorted, of the files that a signature of a bundle has to cover.

    These are the manifest, and the files that it lists but README.md.
    """
    return tuple(sorted({MANIFEST_FILE, *manifest.files} - UNSIGNED_FILES))


def unlisted_files(root: Path, manifest: Manifest, signature: Path) -> tuple[str, ...]:
    """Return the POSIX paths, sorted, of files in a bundle's folder that are not the bundle's: programs may read them.

    Left out are README.md, signatures, the files of git, and the folder .cache of the hub's client.
    """
    known = {MANIFEST_FILE, SIGNATURE_FILE, *UNSIGNED_FILES, *manifest.files}
    found = {name for name in files_in(root) if name not in known and not name.startswith(_GIT)}
    return tuple(sorted(name for name in found if (root / name).absolute() != signature.absolute()))
