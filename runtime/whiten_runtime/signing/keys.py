"""Check keys in PEM files before they sign or verify: elliptic curves P-256, P-384 and P-521."""

import hashlib
from pathlib import Path
from typing import Any

from whiten_runtime.bundle.reading import read_file, why_not_read
from whiten_runtime.checks import needing
from whiten_runtime.errors import BundleError, UsageError

CURVES = ("secp256r1", "secp384r1", "secp521r1")
"""Names of the curves P-256, P-384 and P-521, which are those that model-signing takes."""

_MAKE = "openssl ecparam -name prime256v1 -genkey -noout -out private.pem"
_EXTRACT = "openssl ec -in private.pem -pubout -out public.pem"
_LARGEST = 1 << 16


def needs_passphrase(path: Path) -> bool:
    """Return whether a private key is protected by a passphrase.

    Raises:
        UsageError: the file cannot be read, or holds no private key.
        MissingPackageError: model-signing is not installed.
    """
    return _load_private(_read(path), path, None) is None


def check_private_key(path: Path, passphrase: str | None) -> None:
    """Check that a file holds a private key that can sign.

    Args:
        path: PEM file.
        passphrase: what the key is protected by; None if it is not. Ignored for a key without protection.

    Raises:
        UsageError: the file cannot be read, holds no private key or one of another kind, or the passphrase is missing
            or wrong.
        MissingPackageError: model-signing is not installed.
    """
    key = _load_private(_read(path), path, passphrase)
    if key is None:
        raise UsageError(f"{path}: this key is protected by a passphrase, and none was given; give it")
    _check_curve(key, path)


def public_key_id(path: Path) -> str:
    """Return the SHA-256 of a public key in PEM, in hexadecimal digits; signatures hold the same one.

    Raises:
        UsageError: the file cannot be read, or holds no public key, or one of another kind.
        MissingPackageError: model-signing is not installed.
    """
    with needing("sign"):
        from cryptography.hazmat.primitives import serialization
    content = _read(path)
    try:
        key = serialization.load_pem_public_key(content)
    except Exception:  # ValueError, or UnsupportedAlgorithm of cryptography
        if b"PRIVATE KEY-----" in content:
            raise UsageError(
                f"{path}: is a private key; a signature is checked with the public one: {_EXTRACT}"
            ) from None
        raise UsageError(f"{path}: is no public key in PEM; wanted one such as {_EXTRACT} writes") from None
    _check_curve(key, path)
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(key.public_bytes(*form)).hexdigest()


def _load_private(content: bytes, path: Path, passphrase: str | None) -> Any:
    """Return the private key, or None if it needs a passphrase and none is given."""
    with needing("sign"):
        from cryptography.hazmat.primitives import serialization
    try:
        return serialization.load_pem_private_key(content, None)
    except TypeError:  # it is encrypted
        if passphrase is None:
            return None
    except Exception:  # ValueError, or UnsupportedAlgorithm of cryptography
        if b"PUBLIC KEY-----" in content:
            raise UsageError(f"{path}: is a public key; a bundle is signed with the private one") from None
        raise UsageError(f"{path}: is no private key in PEM; wanted one such as {_MAKE} writes") from None
    try:
        return serialization.load_pem_private_key(content, passphrase.encode())
    except Exception:  # ValueError, or UnsupportedAlgorithm of cryptography
        raise UsageError(f"{path}: the passphrase does not open this key; give the right one") from None


def _read(path: Path) -> bytes:
    """Return the content of a file of keys.

    Raises:
        UsageError: it cannot be read, is empty, or is too large for a key.
    """
    try:
        content = read_file(path, _LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{path}: is no file; wanted a key in PEM") from None
    except BundleError:
        raise UsageError(f"{path}: {why_not_read(path, _LARGEST)}; wanted a key in PEM") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    if not content:
        raise UsageError(f"{path}: is empty; wanted a key in PEM")
    return content


def _check_curve(key: Any, path: Path) -> None:
    curve = getattr(getattr(key, "curve", None), "name", type(key).__name__.strip("_"))
    if curve not in CURVES:
        raise UsageError(f"{path}: is a key of {curve}; wanted one of P-256, P-384 or P-521: {_MAKE}")
