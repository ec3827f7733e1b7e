"""Parse requests of HTTP/1.1, and ignore offers to go on with another protocol."""

from contextlib import suppress
from typing import Any

import httptools


class Parser:
    """Parses as httptools does, but for offers of another protocol, which RFC 9110 (7.8) lets a server ignore.

    httptools ends a request where its headers offer one (Upgrade), before the body. Such a request is parsed again by
    a new parser, without that header.

    Args:
        protocol: gets what is parsed, as from httptools; its `url` and `headers` are those of the present request.
    """

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._head: bytes | None = None
        self.on_message_begin = protocol.on_message_begin
        self.on_url = protocol.on_url
        self.on_header = protocol.on_header
        self.on_body = protocol.on_body
        self._parser = self._made()

    def feed_data(self, data: bytes) -> None:
        """Parse what arrived.

        Raises:
            httptools.HttpParserError: it is not HTTP, or the protocol raised.
            httptools.HttpParserUpgrade: it follows a CONNECT.
        """
        rest = memoryview(data)
        while True:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offer:
                if self._head is None:
                    raise
                rest, head, self._head = rest[offer.args[0] :], self._head, None
                self._parser = self._made()
                self._parser.feed_data(head)

    def on_headers_complete(self) -> None:
        """Pass on that the headers of a request have ended, unless they offer another protocol."""
        if self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT":
            self._head = self._without_offer()
        else:
            self._protocol.on_headers_complete()

    def on_message_complete(self) -> None:
        """Pass on that a request has ended."""
        if self._head is None:
            self._protocol.on_message_complete()

    def get_method(self) -> bytes:
        """Return the method of the present request."""
        method: bytes = self._parser.get_method()
        return method

    def get_http_version(self) -> str:
        """Return the version that the present request names."""
        version: str = self._parser.get_http_version()
        return version

    def should_keep_alive(self) -> bool:
        """Return whether the connection may stay open after the present request."""
        return bool(self._parser.should_keep_alive())

    def should_upgrade(self) -> bool:
        """Return whether another protocol follows; only after a CONNECT."""
        return bool(self._parser.should_upgrade())

    def _made(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        with suppress(AttributeError):  # httptools < 0.6.3; as uvicorn: clients may send more after "connection: close"
            parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _without_offer(self) -> bytes:
        """Return the request's line and headers, as bytes, without the header that offers another protocol."""
        line = b"%s %s HTTP/%s" % (self.get_method(), self._protocol.url, self.get_http_version().encode())
        headers = [name + b": " + value for name, value in self._protocol.headers if name != b"upgrade"]
        return b"\r\n".join([line, *headers, b"", b""])
