"""Sign bundles, and check who signed them, by OpenSSF model-signing: one detached file beside `whiten.json`."""

import base64
import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from whiten_runtime.bundle.bundle import (
    SIGNATURE_FILE,
    UNSIGNED_FILES,
    Bundle,
    open_bundle,
    signed_files,
    unlisted_files,
)
from whiten_runtime.bundle.files import read_file, sha256_of
from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.errors import BundleError, SignatureError, UsageError, WhitenError, needing, one_line, path_of
from whiten_runtime.files.replacing import delete_abandoned, replace_file
from whiten_runtime.hub.locating import locate_bundle

_LARGEST, _LARGEST_KEY = 1 << 24, 1 << 16
"""Sizes in bytes of the largest signature and the largest key that are read; those of bundles have some kilobytes."""

_SHOWN = 5
"""Number of names that a message has at most."""

_KEY = "a key in PEM"
_MAKE = "openssl ecparam -name prime256v1 -genkey -noout -out private.pem"
_EXTRACT = "openssl ec -in private.pem -pubout -out public.pem"


class Opened(Protocol):
    """Is an `Encoder` or a `VectorWhitener`."""

    _bundle: Bundle


@dataclass(frozen=True)
class Signature:
    """Describes a signature that was checked.

    Attributes:
        file: the file of the signature.
        signer: who signed: the key's file and its SHA-256, or the identity and who vouches for it.
        sha256: SHA-256 of the bundle's `whiten.json` that was signed, which holds those of all its other files.
    """

    file: Path
    signer: str
    sha256: str

    def check(self, opened: Opened) -> None:
        """Check that a bundle which was opened is the one that was signed: it may have been replaced in between.

        Args:
            opened: `Encoder` or `VectorWhitener` that was created after `verify_signature`, with its hashes checked.

        Raises:
            SignatureError: it is another bundle.
            UsageError: it was opened with `verify_hashes=False`: its files may be others.
        """
        bundle = opened._bundle
        if not bundle.hashed:
            raise UsageError(f"{bundle.path}: was opened with verify_hashes=False, and may be another; leave that out")
        if bundle.sha256 != self.sha256:
            raise SignatureError(
                f"{bundle.path}: is not the bundle that was signed with {self.signer}: it was replaced after its "
                "signature was checked; check it again"
            )


def sign_bundle(
    path: str | Path, key: str | Path, *, passphrase: str | None = None, signature: str | Path | None = None
) -> Path:
    """Sign a bundle, and return the file of the signature. No other file is changed.

    The signature covers whiten.json and every file that it lists but README.md. Files that only other programs read may
    differ from whiten.json, and are signed as they are. The signature is that of `model_signing sign key`, whose own
    `verify` checks it too.

    Args:
        path: the bundle's directory.
        key: private key in PEM, of the curve P-256, P-384 or P-521.
        passphrase: what the key is protected by; None for a key that is not.
        signature: file to write; None for model.sig in the bundle. An earlier one is replaced.

    Raises:
        BundleError: not a bundle, or an altered or incomplete one, or its folder holds a file that it does not list,
            which a check of the signature would refuse: it is not signed.
        UsageError: the key cannot be used.
        WhitenError: the signature cannot be written.
        MissingPackageError: model-signing is not installed.
    """
    root, private = path_of("path", path), path_of("key", key)
    target = root / SIGNATURE_FILE if signature is None else path_of("signature", signature)
    with needing("sign"):
        from model_signing import signing
    if needs_passphrase(private) and passphrase is None:
        raise UsageError(f"{private}: this key is protected by a passphrase, and none was given; give it")
    config = signing.Config()
    try:
        config.use_elliptic_key_signer(private_key=private, password=passphrase and passphrase.encode())
    except Exception as error:  # those of cryptography
        raise UsageError(
            f"{private}: is no private key of P-256, P-384 or P-521 in PEM, or the passphrase does not open it "
            f"({one_line(error)[:300]}); wanted one such as {_MAKE} writes"
        ) from None
    bundle = open_bundle(root)
    delete_abandoned(target)
    if others := unlisted_files(root, bundle.manifest, target):
        raise BundleError(
            f"{root}: holds {_some_names(others)}, which whiten.json does not list, and a check of the signature would "
            "refuse; move it elsewhere, and sign again"
        )
    with TemporaryDirectory(prefix="whiten-") as folder:
        written = Path(folder) / SIGNATURE_FILE
        config.set_hashing_config(_hashing(root, target, UNSIGNED_FILES)).sign(root, written)
        content = written.read_bytes()
    replace_file(target, content)
    return target


def verify_signature(
    path: str | Path,
    *,
    key: str | Path | None = None,
    identity: str | None = None,
    identity_provider: str | None = None,
    signature: str | Path | None = None,
    revision: str | None = None,
) -> Signature:
    """Check that a bundle is as its author signed it. The graph is not opened, and no vector is computed.

    Another bundle may take its place afterwards: `Signature.check` says whether the one that was opened is the same.

    Args:
        path: the bundle's directory, or a repository of the model hub, as for `Encoder`.
        key: the author's public key in PEM.
        identity: the author's e-mail address or workflow, as sigstore's certificate states it; checked over the
            network. Either this or a key is needed.
        identity_provider: address of the OpenID Connect provider that vouches for the identity.
        signature: file of the signature; None for model.sig in the bundle.
        revision: branch, tag or commit of the repository, as for `Encoder`.

    Raises:
        SignatureError: the bundle is not signed, or not by this author, or a file is not as it was signed, or one in
            the folder was not signed (but README.md, model.sig, .git* and .cache).
        BundleError: not a bundle.
        UsageError: the key cannot be used, or neither a key nor an identity is given, or both are.
        WhitenError: sigstore cannot be reached.
        MissingPackageError: model-signing is not installed.
    """
    config, signer = _verifier(key, identity, identity_provider)
    root = locate_bundle(path, revision)
    manifest = read_manifest(root)
    file = root / SIGNATURE_FILE if signature is None else path_of("signature", signature)
    stated, wanted = _stated(root, file), (*signed_files(manifest), *unlisted_files(root, manifest, file))
    from cryptography.exceptions import InvalidSignature

    try:
        with redirect_stdout(sys.stderr):  # model-signing prints warnings there
            config.set_hashing_config(_hashing(root, file, UNSIGNED_FILES - stated.keys())).verify(root, file)
    except InvalidSignature:
        raise SignatureError(f"{root}: was not signed with {signer}; the signature in {file} is another's") from None
    except Exception as error:  # those of model-signing, sigstore and parsers of JSON
        text = one_line(error)[:300]
        if text.startswith("Signature mismatch"):  # the author is the right one
            _check_covered(root, wanted, stated)
            names = [name for name, digest in stated.items() if not _is_file_of(root / name, digest)]
            why = f"not as it was signed: {_some_names(names)}"
        elif text.startswith("Key mismatch"):
            why = f"was not signed with {signer}; the signature in {file} is of another key"
        else:
            why = f"the signature in {file} does not hold for {signer} ({text})"
        raise SignatureError(f"{root}: {why}; get the bundle from its author again") from None
    _check_covered(root, wanted, stated)
    return Signature(file, signer, stated[MANIFEST_FILE])


def needs_passphrase(key: Path) -> bool:
    """Return whether a private key is protected by a passphrase."""
    return b"ENCRYPTED" in _read(key, _LARGEST_KEY, UsageError, _KEY)


def _verifier(key: str | Path | None, identity: str | None, provider: str | None) -> tuple[Any, str]:
    """Return model-signing's configuration that checks an author, and the author in words."""
    if key is not None and (identity, provider) != (None, None):
        raise UsageError("both a key and an identity were given; a signature is checked by one of them")
    if key is None and (not identity or not provider):
        raise UsageError(
            "a signature is checked with a key, or with an identity and its identity provider; give "
            "--public-key FILE, or --identity NAME and --identity-provider URL"
        )
    with needing("sign"):
        from model_signing import verifying
    config = verifying.Config()
    if key is not None:
        public = path_of("key", key)
        content = _read(public, _LARGEST_KEY, UsageError, _KEY)
        try:
            config.use_elliptic_key_verifier(public_key=public)
        except Exception as error:  # those of cryptography
            raise UsageError(
                f"{public}: is no public key of P-256, P-384 or P-521 in PEM ({one_line(error)[:300]}); wanted one "
                f"such as {_EXTRACT} writes"
            ) from None
        return config, f"key {public} (SHA-256 {hashlib.sha256(content).hexdigest()[:16]})"
    try:
        config.use_sigstore_verifier(identity=identity, oidc_issuer=provider)
    except Exception as error:  # those of sigstore, tuf and their HTTP libraries
        raise WhitenError(
            f"the signature cannot be checked: sigstore's keys cannot be fetched ({type(error).__name__}: "
            f"{one_line(error)[:300]}); check the network, or use --public-key"
        ) from error
    return config, f"{identity}, by {provider}"


def _hashing(root: Path, signature: Path, unsigned: Iterable[str]) -> Any:
    """Return model-signing's configuration of what is hashed; links are followed, of which the hub's cache is made."""
    from model_signing import hashing

    ignored = [".cache", SIGNATURE_FILE, *sorted(unsigned)]
    if signature.absolute().is_relative_to(root.absolute()):
        ignored.append(str(signature.absolute().relative_to(root.absolute())))
    return hashing.Config().set_ignored_paths(paths=ignored).set_allow_symlinks(True)


def _check_covered(root: Path, wanted: Iterable[str], stated: Collection[str]) -> None:
    if missing := [name for name in wanted if name not in stated]:
        raise SignatureError(
            f"{root}: its signature does not cover {_some_names(missing)}; remove what is not of the bundle, get it "
            "from its author again, or sign it"
        )


def _is_file_of(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_of([path]) == digest


def _stated(root: Path, file: Path) -> dict[str, str]:
    """Return the SHA-256 of the signed files by their POSIX paths, as the file of a signature states them."""
    if not file.exists():
        raise SignatureError(
            f"{root}: is not signed: there is no file {file}; sign it with whiten sign, or get a signed copy from its "
            "author"
        )
    content = _read(file, _LARGEST, SignatureError, "a signature; get the bundle from its author again")
    try:
        statement = json.loads(base64.b64decode(json.loads(content)["dsseEnvelope"]["payload"]))
        return {one["name"]: one["digest"] for one in statement["predicate"]["resources"]}
    except (ValueError, LookupError, TypeError, RecursionError):
        raise SignatureError(f"{file}: is no signature; get the bundle from its author again") from None


def _read(path: Path, most: int, kind: type[WhitenError], wanted: str) -> bytes:
    """Return the content of a file of keys or of a signature."""
    try:
        return read_file(path, most)
    except (FileNotFoundError, NotADirectoryError):
        why = "is no file"
    except BundleError:
        why = f"is no regular file, or is larger than {most:,} bytes"
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
    raise kind(f"{path}: {why}; wanted {wanted}")


def _some_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
