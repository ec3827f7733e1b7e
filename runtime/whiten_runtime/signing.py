"""Sign bundles by OpenSSF model-signing, and check that an author's signature covers all of a bundle."""

import base64
import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from whiten_runtime.bundle.bundle import SIGNATURE_FILE, UNSIGNED_FILES, open_bundle, signed_files, unlisted_files
from whiten_runtime.bundle.files import read_file
from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.errors import BundleError, SignatureError, UsageError, needing, one_line, path_of
from whiten_runtime.files.replacing import delete_abandoned, replace_file
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.opened.encoder import Encoder
from whiten_runtime.opened.opening import bundle_of
from whiten_runtime.opened.vector_whitener import VectorWhitener

_LARGEST = 1 << 24
"""Bytes of the largest signature that is read; those of bundles have some kilobytes."""

_NAMED = 5
"""Number of files that a message names at most."""

_MAKE = "openssl ecparam -name prime256v1 -genkey -noout -out private.pem"
_EXTRACT = "openssl ec -in private.pem -pubout -out public.pem"


@dataclass(frozen=True)
class Signature:
    """A signature that was checked.

    Attributes:
        file: the file of the signature.
        signer: who signed: the key's file and its SHA-256.
        sha256: SHA-256 of the bundle's `whiten.json` that was signed, which holds those of all its other files.
    """

    file: Path
    signer: str
    sha256: str

    def check(self, opened: Encoder | VectorWhitener) -> None:
        """Check that a bundle which was opened is the one that was signed: it may have been replaced in between.

        Args:
            opened: `Encoder` or `VectorWhitener` that was created after `verify_signature`, with its hashes checked.

        Raises:
            SignatureError: it is another bundle.
            UsageError: it was opened with `verify_hashes=False`: its files may be others.
        """
        bundle = bundle_of(opened)
        if not bundle.hashed:
            raise UsageError(f"{bundle.path}: was opened with verify_hashes=False, and may be another; leave that out")
        if bundle.sha256 != self.sha256:
            raise SignatureError(
                f"{bundle.path}: is not the bundle that was signed with {self.signer}: it was replaced after its "
                "signature was checked; check it again"
            )


def sign_bundle(path: str | Path, key: str | Path, *, passphrase: str | None = None) -> Path:
    """Sign a bundle, and return the file of the signature, `model.sig` in the bundle. No other file is changed.

    The signature covers whiten.json and every file that it lists but README.md. Files that only other programs read may
    differ from whiten.json, and are signed as they are. The signature is that of `model_signing sign key`, whose own
    `verify` checks it too.

    Args:
        path: the bundle's directory.
        key: private key in PEM, of the curve P-256, P-384 or P-521.
        passphrase: what the key is protected by; None for a key that is not.

    Raises:
        BundleError: not a bundle, or an altered or incomplete one, or its folder holds a file that it does not list,
            which a check of the signature would refuse: it is not signed.
        UsageError: the key cannot be used.
        WhitenError: the signature cannot be written.
        MissingPackageError: model-signing is not installed.
    """
    root, private = path_of("path", path), _key_file(key)
    with needing("sign"):
        from model_signing import hashing, signing
    config = signing.Config()
    try:
        config.use_elliptic_key_signer(private_key=private, password=passphrase and passphrase.encode())
    except Exception as error:  # those of cryptography
        raise UsageError(
            f"{private}: is no private key of P-256, P-384 or P-521 in PEM, or the passphrase does not open it "
            f"({one_line(error)[:300]}); wanted one such as {_MAKE} writes"
        ) from None
    target = root / SIGNATURE_FILE
    bundle = open_bundle(root)
    delete_abandoned(target)
    if others := unlisted_files(root, bundle.manifest):
        raise BundleError(
            f"{root}: holds {_named(others)}, which whiten.json does not list, and a check of the signature would "
            "refuse; move it elsewhere, and sign again"
        )
    ignored = [".cache", SIGNATURE_FILE, *sorted(UNSIGNED_FILES)]
    config.set_hashing_config(hashing.Config().set_ignored_paths(paths=ignored).set_allow_symlinks(True))
    with TemporaryDirectory(prefix="whiten-") as folder:
        written = Path(folder) / SIGNATURE_FILE
        config.sign(root, written)
        content = written.read_bytes()
    replace_file(target, content)
    return target


def verify_signature(path: str | Path, key: str | Path, *, revision: str | None = None) -> Signature:
    """Check that a bundle is as its author signed it. The graph is not opened, and no vector is computed.

    Another bundle may take its place afterwards: `Signature.check` says whether the one that was opened is the same.

    Args:
        path: the bundle's directory, or a repository of the model hub, as for `Encoder`.
        key: the author's public key in PEM.
        revision: branch, tag or commit of the repository, as for `Encoder`.

    Raises:
        SignatureError: the bundle is not signed, or not by this author, or a file is not as it was signed, or one in
            the folder was not signed (but README.md, model.sig, .git* and .cache).
        BundleError: not a bundle.
        UsageError: the key cannot be used.
        MissingPackageError: model-signing is not installed.
    """
    public = _key_file(key)
    with needing("sign"):
        from model_signing import hashing, verifying
    config = verifying.Config().set_ignore_unsigned_files(True)  # they are refused below, links to folders too
    config.set_hashing_config(hashing.Config().set_allow_symlinks(True))  # the hub's cache is made of links
    try:
        config.use_elliptic_key_verifier(public_key=public)
    except Exception as error:  # those of cryptography
        raise UsageError(
            f"{public}: is no public key of P-256, P-384 or P-521 in PEM ({one_line(error)[:300]}); wanted one such as "
            f"{_EXTRACT} writes"
        ) from None
    signer = f"key {public} (SHA-256 {hashlib.sha256(public.read_bytes()).hexdigest()[:16]})"
    root = locate_bundle(path, revision)
    manifest, file = read_manifest(root), root / SIGNATURE_FILE
    content = _read(root, file)
    signed = _signed_hashes(file, content)
    with TemporaryDirectory(prefix="whiten-") as folder:  # what is checked is what was read, though it be replaced
        copy = Path(folder) / SIGNATURE_FILE
        copy.write_bytes(content)
        try:
            with redirect_stdout(sys.stderr):  # model-signing prints warnings there
                config.verify(root, copy)
        except Exception as error:  # those of model-signing and cryptography; the latter has no words
            why = one_line(error)[:1000] or "the signature is another's"
            raise SignatureError(
                f"{root}: is not as {signer} signed it ({why}); get the bundle from its author again"
            ) from None
    wanted = (*signed_files(manifest), *unlisted_files(root, manifest))
    if missing := [name for name in wanted if name not in signed]:
        raise SignatureError(
            f"{root}: its signature does not cover {_named(missing)}; remove what is not of the bundle, get it from "
            "its author again, or sign it"
        )
    return Signature(file, signer, signed[MANIFEST_FILE])


def _key_file(key: str | Path) -> Path:
    path = path_of("key", key)
    if not path.is_file():
        raise UsageError(f"{path}: is no file; wanted a key in PEM")
    return path


def _read(root: Path, file: Path) -> bytes:
    """Return the content of the file of a signature."""
    try:
        return read_file(file, _LARGEST)
    except FileNotFoundError:
        raise SignatureError(
            f"{root}: is not signed: there is no file {file}; sign it with whiten sign, or get a signed copy from its "
            "author"
        ) from None
    except (BundleError, OSError) as error:
        raise SignatureError(f"{file}: cannot be read ({one_line(error)})") from None


def _signed_hashes(file: Path, content: bytes) -> dict[str, str]:
    """Return the SHA-256 of the signed files by their POSIX paths, as a signature states them."""
    try:
        statement = json.loads(base64.b64decode(json.loads(content)["dsseEnvelope"]["payload"]))
        return {entry["name"]: entry["digest"] for entry in statement["predicate"]["resources"]}
    except (ValueError, LookupError, TypeError, RecursionError):
        raise SignatureError(f"{file}: is no signature; get the bundle from its author again") from None


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
