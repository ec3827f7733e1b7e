"""Start and stop uvicorn's server without losing a request."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn

from whiten_serving.server.guards import Guards
from whiten_serving.server.handshakes import Acceptor, Handshake
from whiten_serving.server.protocol import protocol_with
from whiten_serving.server.tls import Certificate

_LINGER = 0.5
"""Seconds that connections without a request have, after the listener was closed, for one that is on its way."""


class GracefulServer(uvicorn.Server):
    """Serves an application, without signals of its own, and stops in an order that loses no request.

    Args:
        config: uvicorn's configuration.
        guards: the guards of its protocol.
        certificate: certificate of TLS, or None.
        started: function that is called when connections are accepted.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        guards: Guards,
        certificate: Certificate | None,
        started: Callable[[], object],
    ) -> None:
        super().__init__(config)
        self._guards = guards
        self._certificate = certificate
        self._started = started
        self._beginning: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections.

        Raises:
            OSError: a socket cannot listen. It is asked here, since uvloop says nothing of an address that is in use.
        """
        for sock in sockets or ():
            sock.listen(self.config.backlog)
        if self._certificate is None or sys.platform == "win32":  # where no loop tells that a socket can be accepted
            await super().startup(sockets)
        else:
            await super().startup([])
            self.servers = [Acceptor(sock, self._begin) for sock in sockets or ()]
        self._started()

    def _begin(self, connection: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._serve_connection(connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listeners, answer what was accepted or sent, and close the connections."""
        self._guards.draining = True
        accepted = list(_backlog(sockets or ()))
        for server in self.servers:
            server.close()
        async with asyncio.TaskGroup() as group:
            for connection in accepted:
                group.create_task(self._serve_connection(connection))
            group.create_task(self._linger())
        await super().shutdown(sockets)

    async def _serve_connection(self, connection: socket.socket) -> None:
        if self._certificate is not None:
            connections = self.server_state.connections
            await Handshake(self._protocol, self._certificate, self._guards, connections).agree(connection)
            return
        with contextlib.suppress(OSError):  # the client has gone
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> asyncio.Protocol:
        made: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = made(self.config, self.server_state, self.lifespan.state)
        return protocol

    async def _linger(self) -> None:
        grace = self.config.timeout_graceful_shutdown
        await asyncio.sleep(_LINGER if grace is None else min(_LINGER, grace))


def make_server(
    app: Any,
    guards: Guards,
    keep_alive: float,
    grace: float,
    certificate: Certificate | None,
    started: Callable[[], object],
) -> GracefulServer:
    """Return a server of an application.

    Args:
        app: the application.
        guards: bounds of its connections.
        keep_alive: seconds that a connection may be idle.
        grace: seconds in which requests may end when it stops.
        certificate: certificate of TLS, or None.
        started: function that is called when connections are accepted.
    """
    config = uvicorn.Config(
        app,
        loop="none",
        http=protocol_with(guards),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=keep_alive,  # type: ignore[arg-type]
        timeout_graceful_shutdown=grace,  # type: ignore[arg-type]
    )
    config.load()
    config.ssl = None if certificate is None else certificate.context
    return GracefulServer(config, guards, certificate, started)


def _backlog(sockets: Sequence[socket.socket]) -> Iterator[socket.socket]:
    """Accept what the kernel has accepted already: closing a listener would reset these connections."""
    for sock in sockets:
        while True:
            try:
                connection, _ = sock.accept()
            except OSError:  # there is no more, or no file descriptor for it
                break
            connection.setblocking(False)
            yield connection
