"""Ports of this machine for servers of tests."""

import socket

_held: list[socket.socket] = []


def free_port() -> int:
    """Return a port for a server that this process starts; the system gives it to nobody else until the process ends.

    A socket that listens to nothing holds it. Servers may listen there all the same, as they set SO_REUSEADDR.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    _held.append(sock)
    return int(sock.getsockname()[1])
