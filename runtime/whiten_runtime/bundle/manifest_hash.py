"""Compute the SHA-256 that the manifest, `whiten.json`, holds of its own bytes, and write it there."""

import hashlib
import re

HASH_FIELD = "manifest_sha256"

_DIGITS = 64
_PLACE = re.compile(rb'"%b"\s*:\s*"([0-9a-f]{%d})"' % (HASH_FIELD.encode(), _DIGITS))


def own_hash(content: bytes) -> str | None:
    """Return the SHA-256 of a manifest's bytes in which the digits of its first `manifest_sha256` are zeros.

    None if there is no such field of 64 lower-case hexadecimal digits.
    """
    place = _PLACE.search(content)
    if place is None:
        return None
    zeroed = _with_digits(content, place, "0" * _DIGITS)
    return hashlib.sha256(zeroed).hexdigest()


def with_hash_field(content: bytes) -> bytes:
    """Return a manifest's bytes with their own hash as its second field; the first is on a line of its own."""
    first, rest = content.split(b",\n", 1)
    return with_own_hash(first + f',\n  "{HASH_FIELD}": "{"0" * _DIGITS}",\n'.encode() + rest)


def with_own_hash(content: bytes) -> bytes:
    """Return a manifest's bytes with their own hash in the place of the first `manifest_sha256`'s 64 digits."""
    place, digits = _PLACE.search(content), own_hash(content)
    if place is None or digits is None:
        raise ValueError(f"no {HASH_FIELD} of {_DIGITS} hexadecimal digits")
    return _with_digits(content, place, digits)


def _with_digits(content: bytes, place: re.Match[bytes], digits: str) -> bytes:
    return content[: place.start(1)] + digits.encode() + content[place.end(1) :]
