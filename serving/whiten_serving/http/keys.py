"""Check the keys of requests."""

import hmac
from collections.abc import Iterable
from hashlib import sha256

from whiten_serving.http.errors import ApiError


class Keys:
    """Checks keys in a time that does not depend on how much of a key is right.

    Args:
        keys: the keys that are taken; none takes every request.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [sha256(key.encode()).digest() for key in keys]

    def check(self, headers: dict[bytes, bytes]) -> None:
        """Check the key of a request: `Authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`.

        Raises:
            ApiError: it has none, or another.
        """
        if not self._digests:
            return
        given = _given(headers)
        if given is None:
            raise ApiError("invalid_api_key", "the request has no key; send the header 'Authorization: Bearer KEY'")
        digest = sha256(given).digest()
        if not sum([hmac.compare_digest(digest, known) for known in self._digests]):
            raise ApiError("invalid_api_key", "the request's key is not one of this server; check it")


def _given(headers: dict[bytes, bytes]) -> bytes | None:
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and key.strip():
        return key.strip()
    return headers.get(b"x-api-key") or headers.get(b"api-key")
