"""Accept connections with TLS: they are counted and timed before they are encrypted, too."""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from whiten_serving.server.guards import Guards
from whiten_serving.server.protocol import LINGERING
from whiten_serving.server.tls import Certificate

_CLOSING = 2.0
"""Seconds that a client has to answer the end of TLS, and in which one that was accepted late may still send."""

_AT_ONCE = 100
"""Connections that are accepted before others get their turn."""

_PAUSE = 0.1
"""Seconds in which nothing is accepted where no file descriptor is left."""


class Acceptor:
    """Accepts what comes to a socket that listens, until it is closed.

    Args:
        listener: the socket, which does not block.
        begin: gets each connection.
    """

    def __init__(self, listener: socket.socket, begin: Callable[[socket.socket], object]) -> None:
        self._listener = listener
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Accept nothing more; the socket stays open."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """Return at once: uvicorn waits for what accepts."""

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_PAUSE, self._listen)
                return
            connection.setblocking(False)
            self._begin(connection)


class Handshake:
    """Is a connection until TLS is agreed on; then the connection is that of another protocol.

    It is one of uvicorn's connections meanwhile: it counts, and a server that stops waits for it.

    Args:
        following: makes the protocol of the connection.
        certificate: the certificate.
        guards: bounds of connections.
        connections: the server's connections.
    """

    def __init__(
        self,
        following: Callable[[], asyncio.Protocol],
        certificate: Certificate,
        guards: Guards,
        connections: set[Any],
    ) -> None:
        self._following = following
        self._certificate = certificate
        self._guards = guards
        self._connections = connections
        self._stopping = False

    def shutdown(self) -> None:
        """Stop soon: uvicorn calls this on every connection when the server stops."""
        self._stopping = True

    async def agree(self, connection: socket.socket) -> None:
        """Agree on TLS within the time of headers, and begin the protocol; or close the connection.

        If there are too many connections it is closed at once, but a few more than allowed are told so over TLS.
        """
        if len(self._connections) >= self._guards.connections + LINGERING:
            self._guards.refused(503, "connections")
            connection.close()
            return
        self._connections.add(self)
        try:
            with suppress(OSError):  # the client has gone, was too slow, or speaks no TLS that we do
                protocol = await self._agreed(connection)
                if self._stopping:
                    asyncio.get_running_loop().call_later(_CLOSING, protocol.shutdown)
        finally:
            self._connections.discard(self)

    async def _agreed(self, connection: socket.socket) -> Any:
        _, protocol = await asyncio.get_running_loop().connect_accepted_socket(
            self._following,
            connection,
            ssl=self._certificate.context,
            ssl_handshake_timeout=self._guards.header_seconds,
            ssl_shutdown_timeout=_CLOSING,
        )
        return protocol
