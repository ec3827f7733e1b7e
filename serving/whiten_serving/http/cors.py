"""Let pages of other origins read answers, where the operator allows it."""

from collections.abc import Collection

from whiten_serving.http.call import Call, Reply

_METHODS = b"GET, POST, HEAD, OPTIONS"
_EXPOSED = b"x-request-id, x-whiten-truncated, retry-after, retry-after-ms"


class Cors:
    """Adds the headers of cross-origin requests.

    Args:
        origins: origins that are allowed; "*" for all.
    """

    def __init__(self, origins: Collection[str] = ()) -> None:
        self._origins = {origin.encode("latin-1", "replace") for origin in origins}

    def headers(self, call: Call) -> list[tuple[bytes, bytes]]:
        """Return the headers of an answer."""
        if not self._origins:
            return []
        origin = call.headers.get(b"origin")
        if b"*" in self._origins:
            allowed = b"*"
        elif origin in self._origins and origin is not None:
            allowed = origin
        else:
            return [(b"vary", b"Origin")]
        found = [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", _EXPOSED)]
        return found if allowed == b"*" else [*found, (b"vary", b"Origin")]

    def preflight(self, call: Call) -> Reply | None:
        """Return the answer to a browser's question whether a page may send a request; None if this is none."""
        if call.method != "OPTIONS" or not self._origins or b"access-control-request-method" not in call.headers:
            return None
        wanted = call.headers.get(b"access-control-request-headers", b"content-type, authorization")
        headers = (
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", wanted),
            (b"access-control-max-age", b"600"),
        )
        return Reply(status=204, headers=headers)
