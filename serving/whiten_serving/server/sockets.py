"""Make the sockets to listen on: addresses and ports, a Unix socket, or one that systemd opened."""

import errno
import os
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whiten_runtime.errors import UsageError, WhitenError
from whiten_serving.settings.table import Settings

_OWNER_AND_GROUP = 0o660


@dataclass(frozen=True)
class Listeners:
    """Holds sockets that are bound.

    Attributes:
        sockets: the sockets.
        address: how a client names the first, without the scheme: HOST:PORT, or unix:PATH.
        uds: Unix socket that is removed at the end, or None.
    """

    sockets: Sequence[socket.socket]
    address: str
    uds: Path | None = None

    def close(self) -> None:
        """Close the sockets, and remove the file of a Unix socket."""
        for sock in self.sockets:
            sock.close()
        if self.uds is not None:
            self.uds.unlink(missing_ok=True)


def bind(settings: Settings) -> Listeners:
    """Bind the sockets that the settings name. Those of ports do not listen yet: a client is refused, not kept waiting.

    Raises:
        WhitenError: the address or port cannot be used; the message says what else to choose.
    """
    if settings.fd is not None:
        return _inherited(settings.fd)
    if settings.uds is not None:
        return _unix(Path(settings.uds))
    return _ports(settings.host, settings.port)


def port_in_use(address: str) -> WhitenError:
    """Return the error of an address that another process listens on."""
    return WhitenError(f"{address} is in use already; stop what listens there, or choose another port (--port)")


def _ports(host: str, port: int) -> Listeners:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise UsageError(f"--host is '{host}', which has no address: {error.strerror}") from None
    except UnicodeError:
        raise UsageError(f"--host is '{host}', which is no name of a machine; wanted a name or an address") from None
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, place in dict.fromkeys(found):
            sockets.append(_bound(family, (place[0], port, *place[2:]), alone=len(found) == 1))
            port = port or sockets[0].getsockname()[1]
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise _refused(error, host, port) from None
    return Listeners(sockets, f"{f'[{host}]' if ':' in host else host}:{port}")


def _bound(family: int, place: tuple[object, ...], alone: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # on Windows it would let two processes share the port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if alone else 1)
        sock.bind(place)
    except OSError:
        sock.close()
        raise
    return sock


def _refused(error: OSError, host: str, port: int) -> WhitenError:
    if error.errno == errno.EADDRINUSE:
        return port_in_use(f"{host}:{port}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return WhitenError(f"{host}:{port} may not be used: {error.strerror}; choose a port of 1024 or more (--port)")
    return WhitenError(f"cannot listen on {host}:{port}: {error.strerror}; choose another address (--host)")


def _unix(path: Path) -> Listeners:
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        path.chmod(_OWNER_AND_GROUP)
    except OSError as error:
        sock.close()
        raise WhitenError(f"{path}: cannot make a Unix socket there: {error.strerror or error}") from None
    return Listeners([sock], f"unix:{path}", path)


def _remove_stale(path: Path) -> None:
    """Remove the socket of a process that has ended; refuse one that answers, and any other file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise WhitenError(f"{path}: {error.strerror}; choose another path (--uds)") from None
    if not stat.S_ISSOCK(mode):
        raise WhitenError(f"{path}: exists and is no socket; choose another path (--uds)")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise WhitenError(f"{path}: another process listens there; stop it, or choose another path (--uds)")


def _inherited(number: int) -> Listeners:
    try:
        sock = socket.socket(fileno=number)
    except OSError as error:
        raise UsageError(f"--fd is {number}, which is no socket: {error.strerror}; 3 is systemd's first") from None
    if sock.type != socket.SOCK_STREAM or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.detach()
        raise UsageError(f"--fd is {number}, a socket that does not listen for streams; 3 is systemd's first")
    name = sock.getsockname()
    address = f"unix:{name}" if sock.family == socket.AF_UNIX else f"{name[0]}:{name[1]}"
    return Listeners([sock], address)
