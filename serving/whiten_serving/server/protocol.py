"""Guard connections against clients that send too much, too slowly, or do not read: around uvicorn's HTTP protocol."""

import asyncio
import math
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from whiten_serving.server.guards import Guards
from whiten_serving.server.parser import Parser

_PER_HEADER = 32
"""Bytes that each header counts besides its own, so that many small ones are bounded too, as in HTTP/2."""


_LINGER = 2.0
"""Seconds for which a connection is read, and nothing kept, after an answer that came before the end of its request:
closing it at once would reset it, and the client might never see the answer."""

LINGERING = 16
"""Connections beyond the bound that may linger; more are closed at once."""


class _Refused(Exception):  # noqa: N818 - it never leaves the parser
    """Ends the parsing of a request that was answered already."""


class _Transport:
    """Is what a request writes its answer to; closing it lets the connection linger if more of the request comes.

    The head of an answer waits for the beginning of its body: written by themselves, they would be two calls of the
    system, and two packets.

    Args:
        protocol: protocol of the connection.
        cycle: the request.
    """

    def __init__(self, protocol: "GuardedProtocol", cycle: Any) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._bodiless = cycle.scope["method"] == "HEAD"
        self._head: bytes | None = None
        self._begun = False

    def write(self, data: bytes) -> None:
        if not self._begun and self._cycle.response_started and not self._bodiless:
            self._begun, self._head = True, data
            return
        if self._head is not None:
            data, self._head = self._head + data, None
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return bool(self._protocol.transport.is_closing())

    def close(self) -> None:
        if self._head is not None:
            self.write(b"")
        self._protocol.end()


class GuardedProtocol(HttpToolsProtocol):
    """Serves one connection within bounds. `protocol_with` gives it its guards.

    Attributes:
        guards: the bounds.
    """

    guards: Guards

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = Parser(self)
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._in_headers = False
        self._between = True
        self._begun = 0
        self._header_bytes = 0
        self._partial_bytes = 0
        self._unread = 0
        self._refusal: tuple[HTTPStatus, str, str] | None = None
        self._postponed: tuple[HTTPStatus, str, str] | None = None
        self._ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or answer 503 if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.guards.connections:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "connections", "too many connections; try again later")
        else:
            self._expect(self.guards.idle_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._due = math.inf
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; refuse headers that are longer than allowed before they have ended."""
        if self._ending or self._postponed is not None:
            return
        between, self._begun = self._between, 0
        super().data_received(data)
        if self._in_headers and not self._ending and not self.transport.is_closing():
            if not self._begun or (between and self._begun == 1):  # else they began after another request's bytes
                self._partial_bytes += len(data)
            if self._partial_bytes > self.guards.header_bytes:
                self._answer(*self._too_long())

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._in_headers = True
        self._between = False
        self._begun += 1
        self._header_bytes = self._partial_bytes = 0
        self._expect(self.guards.header_seconds)

    def on_url(self, url: bytes) -> None:
        """Take a part of the path."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        super().on_header(name, value)
        self._count(len(name) + len(value) + _PER_HEADER)

    def on_headers_complete(self) -> None:
        """Start the request; while the server drains, its connection is closed after the answer."""
        self._in_headers = False
        self._expect(self.guards.stall_seconds)
        super().on_headers_complete()
        self.cycle.transport = _Transport(self, self.cycle)  # type: ignore[assignment]
        if self.guards.draining:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        super().on_body(body)
        if not self._ending:
            self._due = self.loop.time() + self.guards.stall_seconds

    def on_message_complete(self) -> None:
        """End a request's body."""
        super().on_message_complete()
        self._between = True
        if not self._ending:
            self._due = math.inf

    def on_response_complete(self) -> None:
        """Go on with the next request of the connection, unless it ends."""
        if self._ending:
            self.server_state.total_requests += 1
            return
        last = not self.pipeline
        super().on_response_complete()
        if self._postponed is not None and last:
            self._answer(*self._postponed)

    def shutdown(self) -> None:
        """Close the connection after what it sends now, because the server stops; uvicorn calls this."""
        if self._ending or (self._in_headers and not self._pending()):
            return  # it ends by itself: soon, or after the request whose headers are on their way
        super().shutdown()

    def end(self) -> None:
        """Close the connection; if more of its request is to come, take it for a while and drop it."""
        complete = not self._in_headers and self.cycle is not None and not self.cycle.more_body and not self.pipeline
        crowded = len(self.connections) > self.guards.connections + LINGERING
        if complete or crowded or self.transport.is_closing():
            self.transport.close()
            return
        self._ending = True
        self._unread = 0
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._expect(_LINGER)

    def pause_writing(self) -> None:
        """Wait until the client has taken some of the answer."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._expect(self.guards.stall_seconds)

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        self._unread = 0
        self._due = math.inf

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed, or that was refused while it was parsed."""
        self._answer(*(self._refusal or (HTTPStatus.BAD_REQUEST, "invalid_http", "this is not a request of HTTP/1.1")))

    def _too_long(self) -> tuple[HTTPStatus, str, str]:
        message = f"the headers are longer than {self.guards.header_bytes} bytes"
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", message

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.guards.header_bytes:
            self._refusal = self._too_long()
            raise _Refused

    def _expect(self, seconds: float) -> None:
        """Check in so many seconds that something has happened; one timer serves a connection all its life."""
        self._due = self.loop.time() + seconds
        if self._timer is None or self._timer.when() > self._due:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(self._due, self._check)

    def _check(self) -> None:
        self._timer = None
        now = self.loop.time()
        if self._due > now:
            if self._due < math.inf:
                self._arm()
            return
        unread = self.transport.get_write_buffer_size()
        if self._ending:
            self.transport.close()
        elif self._unread:
            if unread < self._unread:  # it reads, if slowly
                self._unread = unread
                self._expect(self.guards.stall_seconds)
            else:
                self.transport.abort()
        elif self.flow.read_paused:  # it is we who do not read
            self._expect(self.guards.stall_seconds)
        elif self._in_headers:
            self._answer(HTTPStatus.REQUEST_TIMEOUT, "slow_headers", "the headers did not arrive in time")
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        elif self.cycle.response_started:
            self.transport.abort()
        else:
            self._answer(HTTPStatus.REQUEST_TIMEOUT, "slow_body", "the body did not arrive in time")

    def _answer(self, status: HTTPStatus, code: str, message: str) -> None:
        """Answer without the application, after all answers that come first, and close the connection.

        If an answer to this request is on its way already, the connection is reset.
        """
        if self._ending or self.transport.is_closing():
            return
        self._refusal = status, code, message
        cycle = self.cycle
        pending = self._pending()
        if pending and (self.pipeline or not cycle.more_body):
            self._postpone()
            return
        if pending and cycle.response_started:
            self.transport.abort()
            return
        self.guards.refused(status, code)
        kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "overloaded_error"
        error = {"message": message, "type": kind, "param": None, "code": code}
        body = msgspec.json.encode({"error": error})
        retry = b"retry-after: 1\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else b""
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%sconnection: close\r\n\r\n"
            % (status, status.phrase.encode(), len(body), retry)
            + body
        )
        self.end()
        if pending:
            cycle.disconnected = True
            cycle.message_event.set()

    def _pending(self) -> bool:
        """Return whether the application has not answered the last request yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _postpone(self) -> None:
        """Read nothing more, and refuse when the requests before are answered."""
        self._postponed = self._refusal
        self._due = math.inf
        if self.cycle.more_body:  # the last of several, which has not begun
            self.pipeline.popleft()
            self.cycle.response_complete = True


def protocol_with(guards: Guards) -> type[GuardedProtocol]:
    """Return the protocol with guards, as uvicorn's `http` takes it."""
    return type("ServedProtocol", (GuardedProtocol,), {"guards": guards})
