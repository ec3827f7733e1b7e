"""Speak HTTP/1.1 as uvicorn does, but read bodies behind offers of an upgrade, judge heads, and write answers whole.

A client that takes nothing of its answer for some time is cut off. One that is refused while it sends its body may send
the rest: closing at once would reset the connection, and many clients then lose the answer (RFC 9112, 9.6).
"""

import asyncio
import re
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST = 65_536
"""Bytes at most that may come one after another without the end of a head and without a byte of a body."""

_WHOLE = 32_768
"""Bytes that are written at once, and not with others of the same turn of the event loop."""

STALLED = 30.0
"""Seconds after which a client that takes nothing of its answer is cut off."""

REST = 30.0
"""Seconds at most in which the rest of a body is read, and dropped, after the answer that closes the connection."""

_HOST = re.compile(rb"(\[[\w.:~!$&'()*+,;=%-]+\]|([\w.~!$&'()*+,;=-]|%[0-9a-fA-F]{2})*)(:[0-9]*)?", re.ASCII)
"""Value of the header Host (RFC 9110, 7.2): an address in brackets or a name, which may be empty, and a port."""


class Protocol(HttpToolsProtocol):  # type: ignore[misc]  # untyped
    """Answers requests that offer an upgrade, such as h2c of Java's client, as if they did not (RFC 9110, 7.8)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser = _Parser(self)
        self.pending = 0
        self.in_head, self.in_body = True, False
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        if transport.get_extra_info("sslcontext") is None:  # with 0, TLS of uvloop pauses and never goes on
            transport.set_write_buffer_limits(0)  # `pause_writing` then tells of every answer that is not taken at once
        super().connection_made(_Transport(transport, self))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        self.in_body = False
        self.transport.close()  # nobody waits for the rest of a body any more
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self.transport.close()  # without the rest of a body

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def _watch(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(STALLED, self._look, left)

    def _look(self, left: int) -> None:
        """Cut the client off if it has taken nothing of the bytes that were left."""
        if self.transport.get_write_buffer_size() < left:
            self._watch()
        else:
            self.transport.abort()

    def _stop_watching(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        self.in_body = False  # the end of a body that cannot be parsed is not found
        super().send_400_response(msg)

    def on_message_begin(self) -> None:
        self.in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:  # trailers are no headers (RFC 9110, 6.5.1)
            super().on_header(name, value.rstrip(b" \t"))  # blanks that llhttp leaves

    def on_headers_complete(self) -> None:
        self.pending, self.in_head = 0, False
        hosts = [value for name, value in self.headers if name == b"host"]
        wanted = {1} if self.parser.get_http_version() > "1.0" else {0, 1}
        if len(hosts) not in wanted or not all(map(_HOST.fullmatch, hosts)):
            raise httptools.HttpParserError("wanted one valid Host (RFC 9112, 3.2)")
        if not self.parser.should_keep_alive():  # uvicorn before 0.53 reads "TE, close" as a connection that goes on
            fields = [field for field in self.headers if field[0] != b"connection"]
            self.headers[:] = [*fields, (b"connection", b"close")]
        if not self.parser.offers_upgrade() and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self.in_body = not self.expect_100_continue  # else the client may wait for a word before it sends the body
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.pending, self.in_body = 0, True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.offers_upgrade():
            super().on_message_complete()
            self.in_body = False
            if self.transport.is_closing():
                self.transport.close()
            elif self.cycle.response_complete:  # before the end of the body, which has stopped the timer
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

    @property
    def is_refused(self) -> bool:
        """Return whether the last request is answered, and its client may send more of the body."""
        return self.in_body and self.cycle.response_complete

    def head(self) -> bytes:
        """Return the head of the request that was parsed last, without its offer."""
        fields = b"".join(b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade")
        version = self.parser.get_http_version().encode()
        return b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, fields)


class _Transport:
    """Writes in one piece what a turn of the event loop gives: the head and the body of an answer, mostly.

    Closes after the rest of a body that is on its way, or when `close` is called again. The client is told at once.
    """

    def __init__(self, transport: Any, protocol: Protocol) -> None:
        self._transport, self._protocol, self._loop = transport, protocol, protocol.loop
        self._parts: list[bytes] = []
        self._closing: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        if self._closing is not None:
            return
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        if len(data) > _WHOLE:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._closing is not None:
            self._closing.cancel()
        elif self._protocol.is_refused:
            self._closing = self._loop.call_later(REST, self._transport.close)
            self._protocol.flow.resume_reading()
            if self._transport.can_write_eof():  # not with TLS
                self._transport.write_eof()
            return
        self._transport.close()

    def is_closing(self) -> bool:
        return self._closing is not None or self._transport.is_closing()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():  # else the client has gone
            self._transport.writelines(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Parser(httptools.HttpRequestParser):
    """Parses what follows an offer of an upgrade, which httptools skips, by a new parser, from a head without it."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(protocol)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
        self._protocol = protocol

    def offers_upgrade(self) -> bool:
        return self.should_upgrade() and self.get_method() != b"CONNECT"

    def feed_data(self, data: Any) -> None:
        parser, protocol = self, self._protocol
        protocol.pending += len(data)
        while data:
            try:
                super(_Parser, parser).feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as offer:
                if not parser.offers_upgrade():
                    raise
                data = protocol.head() + data[offer.args[0] :]
                protocol.parser = parser = _Parser(protocol)
        if protocol.pending > _MOST:
            raise httptools.HttpParserError("the head is too long")
