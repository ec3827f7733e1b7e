"""Check who signed a bundle: with a public key, or by an identity that sigstore knows."""

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from whiten_runtime.bundle.bundle import Bundle
from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.bundle.reading import read_file, why_not_read
from whiten_runtime.bundle.signature import SIGNATURE_FILE, signed_files
from whiten_runtime.checks import needing, path_of
from whiten_runtime.errors import BundleError, SignatureError, UsageError, WhitenError
from whiten_runtime.hub.locating import fetch_signature, locate_bundle
from whiten_runtime.signing.keys import public_key_id
from whiten_runtime.signing.listed_files import ListedFiles, changed_files, foreign_files, is_signature, some_names

_LARGEST = 1 << 24
"""Size in bytes of the largest signature that is read; those of bundles have some kilobytes."""


class Opened(Protocol):
    """Is an `Encoder` or a `VectorWhitener`."""

    _bundle: Bundle


@dataclass(frozen=True)
class Signature:
    """Describes a signature that was checked.

    Attributes:
        file: the file of the signature.
        signer: who signed: the key's file and SHA-256, or the identity and who vouches for it.
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
            the folder was not signed (but README.md, model.sig and its unfinished copies, .git* and .cache).
        BundleError: not a bundle.
        UsageError: the key cannot be used, or neither a key nor an identity is given, or both are.
        WhitenError: sigstore cannot be reached.
        MissingPackageError: model-signing is not installed.
    """
    _check_one(key, identity, identity_provider)
    with needing("sign"):
        from model_signing import verifying
    config = verifying.Config()
    if key is not None:
        public = path_of("key", key)
        signer = f"key {public} (SHA-256 {public_key_id(public)[:16]})"
        config.use_elliptic_key_verifier(public_key=public)
    else:
        signer = f"{identity}, by {identity_provider}"
        _use_sigstore(config, identity, identity_provider)
    root = locate_bundle(path, revision)
    manifest = read_manifest(root)
    file = _signature_of(path, root, revision) if signature is None else path_of("signature", signature)
    content = _content(root, file)
    files = ListedFiles(root, (*signed_files(manifest), *foreign_files(root, manifest, file)))
    config.set_hashing_config(files).set_ignore_unsigned_files(True)
    _verify(config, files, _Asked(root, file, content, signer))
    return Signature(file, signer, files.found[MANIFEST_FILE])


def _check_one(key: object, identity: str | None, provider: str | None) -> None:
    if key is not None and (identity, provider) != (None, None):
        raise UsageError("both a key and an identity were given; a signature is checked by one of them")
    if key is None and (not identity or not provider):
        raise UsageError(
            "a signature is checked with a key, or with an identity and its identity provider; give --key FILE, or "
            "--identity NAME and --identity-provider URL"
        )


def _use_sigstore(config: Any, identity: str | None, provider: str | None) -> None:
    """Fetch what sigstore trusts, unless it is in its cache.

    Raises:
        WhitenError: it cannot be fetched.
    """
    try:
        config.use_sigstore_verifier(identity=identity, oidc_issuer=provider)
    except Exception as error:  # those of sigstore, tuf and their HTTP libraries
        raise WhitenError(
            f"the signature cannot be checked: sigstore's keys cannot be fetched ({type(error).__name__}: "
            f"{_one_line(error)}); check the network, or use --key"
        ) from error


def _signature_of(path: str | Path, root: Path, revision: str | None) -> Path:
    file = root / SIGNATURE_FILE
    return file if file.exists() else fetch_signature(path, root, revision) or file


def _content(root: Path, file: Path) -> bytes:
    """Return the content of the file of a signature.

    Raises:
        SignatureError: there is none that can be read, or it has not the form of one.
    """
    try:
        content = read_file(file, _LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        raise SignatureError(
            f"{root}: is not signed: there is no file {file}; sign it with whiten sign, or get a signed copy from its "
            "author"
        ) from None
    except BundleError:
        raise SignatureError(
            f"{file}: {why_not_read(file, _LARGEST)}, and no signature; get the bundle from its author again"
        ) from None
    except OSError as error:
        raise SignatureError(f"{file}: cannot be read ({error.strerror}); check its permissions") from error
    if not is_signature(content):
        raise SignatureError(f"{file}: is no signature; get the bundle from its author again")
    return content


@dataclass(frozen=True)
class _Asked:
    """Says what is checked: the signature of a bundle, its file and content, and who has to have signed."""

    root: Path
    file: Path
    content: bytes
    signer: str


def _verify(config: Any, files: ListedFiles, asked: _Asked) -> None:
    """Check a signature.

    Raises:
        SignatureError: it is not what was asked for.
    """
    from cryptography.exceptions import InvalidSignature

    root, file, signer = asked.root, asked.file, asked.signer
    try:
        with redirect_stdout(sys.stderr):  # model-signing prints warnings there
            config.verify(root, file)
    except WhitenError:
        raise
    except InvalidSignature:
        raise SignatureError(f"{root}: was not signed with {signer}; the signature in {file} is another's") from None
    except Exception as error:  # those of model-signing, sigstore and parsers of JSON
        if changed := changed_files(asked.content, files.found):
            raise SignatureError(
                f"{root}: not as it was signed: {some_names(changed)}; get the bundle from its author again"
            ) from None
        raise SignatureError(_refusal(asked, error)) from error


def _refusal(asked: _Asked, error: Exception) -> str:
    """Return the message for what model-signing raised."""
    text = _one_line(error)
    if text.startswith("Key mismatch"):
        return f"{asked.root}: was not signed with {asked.signer}; the signature in {asked.file} is of another key"
    kind = type(error).__name__
    return f"{asked.root}: the signature in {asked.file} does not hold for {asked.signer} ({kind}: {text})"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
