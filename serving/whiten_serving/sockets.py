"""Open the sockets that a server listens on, with their certificates, and say what their addresses are."""

import errno
import os
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path

from whiten_runtime.errors import WhitenError
from whiten_serving.settings import Address, Settings, parse_address

STALLED = 30_000
"""Milliseconds after which a client that takes next to nothing of its answer is cut off."""


def load_certificate(path: str, *contexts: ssl.SSLContext) -> ssl.SSLContext:
    """Return a context with a private key and certificates, and let contexts in use have them too: all, or nothing."""
    loaded = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        for context in (loaded, *contexts):
            context.load_cert_chain(path, password=_refuse_pass_phrase)
    except OSError as error:
        wanted = "a PEM file with the private key and the chain of certificates"
        raise WhitenError(f"{path}: cannot be used for TLS: {error}; wanted {wanted}") from None
    return loaded


def _refuse_pass_phrase() -> str:
    """Ask nobody for a pass phrase, whom a server would wait for."""
    raise OSError("its private key has a pass phrase; write it without one, as by openssl pkey -in KEY -out KEY")


@contextmanager
def open_socket(place: str, settings: Settings) -> Iterator[socket.socket]:
    """Give the socket of an address. Clients are refused until `listen`; one that stalls is cut off, on Linux."""
    address = parse_address(place)
    assert address is not None
    with ExitStack() as stack:
        try:
            if isinstance(address, int):
                sock = stack.enter_context(socket.socket(fileno=os.dup(address)))
            elif isinstance(address, str):
                _remove_unused(Path(address))
                sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                sock.bind(address)
                stack.callback(Path(address).unlink, missing_ok=True)
                _give_to_group(Path(address), settings)
            else:
                sock = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(address)
            if sock.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED)  # connections take it over
        except OSError as error:
            raise _address_error(error, address) from None
        yield sock


def listen(sock: socket.socket) -> None:
    """Let clients connect."""
    try:
        sock.listen(2048)
    except OSError as error:
        raise _address_error(error, sock.getsockname()) from None


def _address_error(error: OSError, address: Address) -> WhitenError:
    return WhitenError(f"{show(address)} cannot be used: {error.strerror or error}; choose another address")


def _give_to_group(path: Path, settings: Settings) -> None:
    try:
        if settings.socket_group:
            shutil.chown(path, group=settings.socket_group)
        path.chmod(int(settings.socket_mode, 8))
    except (OSError, LookupError) as error:
        raise WhitenError(f"unix:{path}: cannot be given to group {settings.socket_group!r}: {error}") from None


def _remove_unused(path: Path) -> None:
    """Remove a Unix socket on which no process listens any more."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
                raise WhitenError(f"unix:{path}: another process listens there; stop it, or choose another path")
        path.unlink()
    elif path.exists():
        raise WhitenError(f"unix:{path}: exists and is no socket; choose another path")


def show(address: Address) -> str:
    """Return an address as text, such as 127.0.0.1:8080, [::1]:8080, unix:PATH or fd:3."""
    if isinstance(address, tuple):
        return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
    return f"unix:{address}" if isinstance(address, str) else f"fd:{address}"


def hosts_of(sock: socket.socket, place: str, settings: Settings) -> frozenset[str] | None:
    """Return the names with dots by which a server that only this machine reaches may be asked; None for any."""
    bound, address = sock.getsockname(), parse_address(place)
    if isinstance(bound, str) or not ip_address(bound[0]).is_loopback:
        return None
    own = [address[0]] if isinstance(address, tuple) else []
    return frozenset(name.lower() for name in (*own, *settings.hosts))


def page_url(settings: Settings, address: str) -> str | None:
    """Return where a browser on this machine finds the page; None where it cannot, or there is none."""
    host, _, port = address.rpartition(":")
    if not settings.page or address.startswith("unix:"):
        return None
    local = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    return f"{'https' if settings.tls else 'http'}://{local}:{port}{settings.root_path}/"
