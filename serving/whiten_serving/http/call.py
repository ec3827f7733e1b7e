"""Describe one request: what was received, and what is told of it in logs and metrics."""

import math
import os
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from itertools import chain, count
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qs

from whiten_runtime.ort.process import after_fork_in_child
from whiten_serving.http.errors import ApiError, Headers

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_ID = re.compile(rb"[!-~]{1,128}")
"""Ids of requests that are taken over from the caller: they are logged and sent back, so only what is harmless."""

_FIELDS = 100
"""Fields of a query string at most."""

_NUMBERS = count(1)
"""Numbers of new ids. Random ids would ask the system each time, which gives the interpreter away to the lanes' threads
and may wait milliseconds for it."""


class _Prefix:
    """Holds the beginning of new ids, which a forked child does not share."""

    text: str

    @classmethod
    def renew(cls) -> None:
        """Choose another one."""
        cls.text = f"{token_hex(8)}-{os.getpid():x}"


_Prefix.renew()
after_fork_in_child(_Prefix.renew)


@dataclass(slots=True)
class Call:
    """Holds one request, and what becomes known of it on its way.

    Attributes:
        scope: ASGI scope.
        receive: function that gives the parts of the body.
        method: HTTP method.
        path: path below the place where the application is mounted.
        headers: headers by lower-case name.
        id: id of the request: that of the header x-request-id, or a new one.
        begun: time of `time.monotonic` when it came.
        deadline: time when it is given up.
        values: parts of the path that stand for something, such as a model's name.
        route: name of the route, for logs and metrics.
        model: name of the model.
        texts: number of its texts.
        tokens: number of their tokens.
        truncated: number of texts that were cut.
        tokenize_seconds: time until it was tokenised.
        queue_seconds: time that it waited in the queue.
        run_seconds: time from its first batch to its last.
        status: HTTP status of its answer; 499 where the caller has gone.
        code: code of its error; None for none.
        answer_headers: headers of its answer, error or not.
        body_bytes: number of bytes of its body that were read so far.
    """

    scope: Scope
    receive: Receive
    method: str
    path: str
    headers: dict[bytes, bytes]
    id: str
    begun: float
    deadline: float = math.inf
    values: dict[str, str] = field(default_factory=dict)
    route: str = "unknown"
    model: str = ""
    texts: int = 0
    tokens: int = 0
    truncated: int = 0
    tokenize_seconds: float = 0.0
    queue_seconds: float = 0.0
    run_seconds: float = 0.0
    status: int = 0
    code: str | None = None
    answer_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body_bytes: int = 0

    @classmethod
    def of(cls, scope: Scope, receive: Receive) -> "Call":
        """Return the request of an ASGI scope."""
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        name = given.decode("ascii") if _ID.fullmatch(given) else f"{_Prefix.text}-{next(_NUMBERS):x}"
        return cls(scope, receive, scope["method"], path_of(scope), headers, name, time.monotonic())

    @property
    def remaining(self) -> float:
        """Return the seconds until the deadline, less than 0 after it."""
        return self.deadline - time.monotonic()

    def query(self, name: str) -> str | None:
        """Return a value of the query string, or None.

        Raises:
            ApiError: the query string has too many fields.
        """
        text = self.scope.get("query_string", b"")
        if text.count(b"&") >= _FIELDS:
            raise ApiError("unsupported_value", f"the query string has more than {_FIELDS} fields; leave most out")
        return parse_qs(text.decode("latin-1")).get(name, [None])[0] if text else None

    def set_deadline(self, timeout: float) -> None:
        """Set the deadline: so many seconds after the request came, or fewer if the header x-timeout-ms says so.

        Raises:
            ApiError: the header is not a number of milliseconds.
        """
        given = self.headers.get(b"x-timeout-ms")
        if given is not None:
            if not given.isdigit() or len(given) > 12:
                shown = given[:20].decode("latin-1")
                raise ApiError("invalid_header", f"x-timeout-ms is {shown!r}; wanted a whole number of milliseconds")
            timeout = min(timeout, int(given) / 1000)
        self.deadline = self.begun + timeout

    def check_headers(self, most: int) -> None:
        """Check the size of all headers.

        Raises:
            ApiError: they are too large.
        """
        size = len(b"".join(chain.from_iterable(self.scope["headers"])))
        size += len(self.scope.get("query_string", b"")) + len(self.path)
        if size > most:
            raise ApiError("headers_too_large", f"the headers hold {size} bytes, and {most} may; send fewer")


@dataclass(slots=True)
class Reply:
    """Holds an answer.

    Attributes:
        body: the body, in one or several parts.
        status: HTTP status.
        content_type: type of the body.
        headers: further headers.
    """

    body: bytes | list[bytes] = b""
    status: int = 200
    content_type: bytes = b"application/json"
    headers: Headers = ()

    @property
    def parts(self) -> list[bytes]:
        """Return the parts of the body."""
        return [self.body] if isinstance(self.body, bytes) else self.body


def path_of(scope: Scope) -> str:
    """Return the path below the place where the application is mounted; servers and frameworks leave both in `path`."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):
        return path[len(root) :] or "/"
    return path
