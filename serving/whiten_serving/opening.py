"""Open what is served: bundles, whose parity is proven on this machine, and the sockets to listen on."""

import errno
import logging
import os
import socket
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.parity import Agreement
from whiten_runtime.errors import ProviderError, UsageError, WhitenError
from whiten_runtime.files.replacing import lock_file
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.opened.encoder import Encoder, embedder_of
from whiten_runtime.opened.opening import proof_of
from whiten_serving.encoder_queue import EncoderQueue
from whiten_serving.http.models import ServedModel
from whiten_serving.scheduler import Scheduler
from whiten_serving.settings import ModelChoice, Settings

_log = logging.getLogger("whiten.serving")

_ABSENT = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Errors of an address that this machine does not have, such as one of IPv6 in a container without it."""

_OWNER_AND_GROUP = 0o660
"""Who may connect to a Unix socket."""


def open_encoder(choice: ModelChoice, settings: Settings) -> tuple[Encoder, Agreement | None]:
    """Open one bundle, and prove its parity, or run it once if that is switched off, so that all sessions are made.

    The memory that this took, for long texts too, is given back.
    """
    encoder = Encoder(choice.bundle, threads=settings.threads, device=settings.device)
    try:
        record_cuda_graphs(encoder)
        if settings.verify:
            proof = proof_of(encoder)
            proof.check(choice.bundle, "; --no-verify serves it all the same")
        else:
            encoder.warmup()
        embedder_of(encoder).engine.trim()
    except BaseException:
        encoder.close()
        raise
    return encoder, proof.agreement if settings.verify else None


def record_cuda_graphs(encoder: Encoder) -> None:
    """Record CUDA graphs for single texts where that is possible: they answer 1.6 to 3 times as fast with them."""
    engine = embedder_of(encoder).engine
    if not engine.can_record:
        return
    try:
        engine.record(encoder.max_seq_length, encoder.manifest.precision)
    except ProviderError as error:
        _log.warning("single texts are computed without CUDA graphs: %s", error)


def make_scheduler(encoders: Sequence[Encoder], settings: Settings) -> Scheduler:
    """Return the scheduler that all models share, with as many lanes as the model that can use the most."""
    return Scheduler(
        max(embedder_of(encoder).engine.schedule.workers for encoder in encoders),
        settings.max_batch_tokens,
        max_queue_tokens=settings.max_queue_tokens,
        max_wait=settings.max_wait,
    )


def served(choice: ModelChoice, encoder: Encoder, agreement: Agreement | None, scheduler: Scheduler) -> ServedModel:
    """Return a model for the application, which closes its encoder with it."""
    parity = None if agreement is None else agreement.min_cosine
    return ServedModel(choice.name, EncoderQueue(encoder, scheduler), parity, owns=True)


def is_replaced(choice: ModelChoice, digest: str) -> bool:
    """Return whether a bundle on the disk is another than the one with this hash of its manifest."""
    return sha256(read_manifest(locate_bundle(choice.bundle)).to_json()).hexdigest() != digest


def described(model: ServedModel) -> str:
    """Return one line about a model: dimension, precision, space, parity."""
    manifest, encoder = model.manifest, model.encoder
    parity = "parity not checked"
    if model.parity is not None:
        parity = f"parity proven on {encoder.providers[0]}: worst cosine {model.parity:.7f}"
    return f"{model.name}: {manifest.dimension} dimensions, {manifest.precision}, space {encoder.space}; {parity}"


@contextmanager
def locked(uds: str | None) -> Iterator[None]:
    """Lock the path of a Unix socket: until the socket listens, nothing else shows that it is of a running process."""
    if uds is None:
        yield
        return
    path = Path(uds)
    try:
        file = path.with_name(f".{path.name}.lock").open("ab")
    except OSError as error:
        raise _no_socket(path, error) from None
    with file:
        try:
            lock_file(file)
        except BlockingIOError:
            raise _taken(path) from None
        yield


def bind(settings: Settings) -> list[socket.socket]:
    """Return the sockets that the settings name, one for each address. They do not listen yet: a client is refused."""
    if settings.fd is not None:
        try:
            return [socket.socket(fileno=settings.fd)]
        except OSError as error:
            message = f"--fd is {settings.fd}, which is no socket: {error.strerror}; 3 is systemd's first"
            raise UsageError(message) from None
    if settings.uds is not None:
        return [_unix(Path(settings.uds))]
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise UsageError(f"--host is '{settings.host}', which has no address; wanted a name or an address") from None
    places = dict.fromkeys((family, place) for family, _, _, _, place in addresses)
    bound: list[socket.socket] = []
    port, absent = settings.port, None
    with ExitStack() as stack:
        for family, place in places:
            try:
                bound.append(stack.enter_context(_bound(family, (place[0], port, *place[2:]), len(places) > 1)))
                port = bound[0].getsockname()[1]  # of a free one that the system chose, the other addresses' too
            except OSError as error:
                absent = refused(error, f"{settings.host}:{settings.port}")
                if error.errno not in _ABSENT:
                    raise absent from None
        if absent is not None and not bound:
            raise absent
        stack.pop_all()
    return bound


def _bound(family: int, place: tuple[Any, ...], several: bool) -> socket.socket:
    with ExitStack() as stack:
        sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        if os.name == "posix":  # on Windows it would let two processes share the port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and several:  # or it would take the port of IPv4 too
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(place)
        stack.pop_all()
    return sock


def written(sockets: Iterable[socket.socket]) -> str:
    """Return the addresses of sockets, such as 127.0.0.1:8080, [::1]:8080 or unix:PATH, with commas in between."""
    names = [sock.getsockname() for sock in sockets]
    forms = {str: "unix:{}", 2: "{0[0]}:{0[1]}", 4: "[{0[0]}]:{0[1]}"}  # a path, IPv4, IPv6
    return ", ".join(forms[str if isinstance(name, str) else len(name)].format(name) for name in names)


def _unix(path: Path) -> socket.socket:
    """Return a Unix socket, in the place of one whose process has ended."""
    try:
        with ExitStack() as stack:
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            if path.exists():
                if not stat.S_ISSOCK(path.stat().st_mode):
                    raise WhitenError(f"{path}: exists and is no socket; choose another path (--uds)")
                if sock.connect_ex(str(path)) == 0:
                    raise _taken(path)
                path.unlink()
            sock.bind(str(path))
            path.chmod(_OWNER_AND_GROUP)
            stack.pop_all()
    except OSError as error:
        raise _no_socket(path, error) from None
    return sock


def _no_socket(path: Path, error: OSError) -> WhitenError:
    return WhitenError(f"{path}: cannot make a Unix socket there: {error.strerror or error}")


def _taken(path: Path) -> WhitenError:
    return WhitenError(f"{path}: another process listens there; stop it, or choose another path (--uds)")


def refused(error: OSError, address: str) -> WhitenError:
    """Return the error of an address that cannot be listened on."""
    return WhitenError(f"{address} cannot be used: {error.strerror}; choose another port (--port) or address (--host)")
