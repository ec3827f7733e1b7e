"""Open what is served: bundles, whose parity is proven on this machine, and the socket to listen on."""

import errno
import logging
import os
import shutil
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path

from whiten_runtime.bundle.manifest import bundle_hash
from whiten_runtime.bundle.parity import Agreement
from whiten_runtime.errors import ProviderError, WhitenError
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.opened.encoder import Encoder
from whiten_runtime.opened.model import embedder_of
from whiten_runtime.opened.opening import proof_of, providers_of
from whiten_runtime.ort.providers import parse_provider
from whiten_serving.encoder_queue import EncoderQueue
from whiten_serving.http.models import ServedModel
from whiten_serving.scheduler import Scheduler
from whiten_serving.settings import Address, Settings

_log = logging.getLogger("whiten.serving")

_BACKLOG = 2048
"""Connections that may wait until they are accepted."""

STALLED = 30_000
"""Milliseconds after which a client that takes next to nothing of its answer is cut off."""


def open_encoder(bundle: str, settings: Settings) -> tuple[Encoder, Agreement | None]:
    """Open one bundle, and prove its parity, or run it once if that is switched off, so that all sessions are made.

    The memory that this took, for long texts too, is given back.
    """
    providers = None if settings.device is None else [parse_provider(settings.device)]
    encoder = Encoder(bundle, providers, memory_limit=settings.memory_limit or None)
    try:
        record_cuda_graphs(encoder)
        if settings.verify:
            proof = proof_of(encoder, quick=True)
            proof.check(bundle, "; --no-verify serves it all the same")
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
        max(embedder_of(encoder).engine.schedule.workers for encoder in encoders), max_wait=settings.max_wait
    )


def make_models(
    names: Sequence[str], encoder: Encoder, agreement: Agreement | None, scheduler: Scheduler
) -> list[ServedModel]:
    """Return models for the application, which share an encoder, and close it with the last of them."""
    parity, queue = None if agreement is None else agreement.min_cosine, EncoderQueue(encoder, scheduler)
    return [ServedModel(name, queue, parity, owns=True) for name in names]


def is_replaced(bundle: str, digest: str) -> bool:
    """Return whether a bundle on the disk is another than the one with this hash of its manifest."""
    return bundle_hash(locate_bundle(bundle)) != digest


def describe(model: ServedModel) -> str:
    """Return one line about a model: dimension, precision, space, parity."""
    manifest, encoder = model.manifest, model.encoder
    parity = "parity not checked"
    if model.parity is not None:
        parity = f"parity proven on {providers_of(encoder)}: worst cosine {model.parity:.7f}"
    return f"{model.name}: {manifest.dimension} dimensions, {manifest.precision}, space {encoder.space}; {parity}"


def check_certificate(path: str) -> None:
    """Check that TLS can be spoken with a file."""
    load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), path)


def load_certificate(context: ssl.SSLContext, path: str) -> None:
    """Load a private key and certificates; nobody is asked for a pass phrase, whom a server would wait for."""
    with naming_certificate(path):
        context.load_cert_chain(path, password=_refuse_pass_phrase)


def _refuse_pass_phrase() -> str:
    raise OSError("its private key has a pass phrase; write it without one, as by openssl pkey -in KEY -out KEY")


@contextmanager
def naming_certificate(path: str | None) -> Iterator[None]:
    """Name the file of the certificate in the errors of what loads it."""
    try:
        yield
    except OSError as error:
        wanted = "a PEM file with the private key and the chain of certificates"
        raise WhitenError(f"{path}: cannot be used for TLS: {error}; wanted {wanted}") from None


@contextmanager
def open_socket(place: str, settings: Settings) -> Iterator[socket.socket]:
    """Give the socket of an address, on which `listen` lets clients connect: before that, they are refused."""
    address = Address.of(place)
    uds = None if address.uds is None else Path(address.uds)
    family = socket.AF_UNIX if uds else socket.AF_INET6 if ":" in address.host else socket.AF_INET
    if uds is not None:
        _remove_unused(uds)
    with ExitStack() as stack:
        try:
            number = None if address.fd is None else os.dup(address.fd)
            sock = stack.enter_context(socket.socket(family) if number is None else socket.socket(fileno=number))
            if uds is not None:
                sock.bind(address.uds or "")
                stack.callback(uds.unlink, missing_ok=True)
                _give_to_group(uds, settings)
            elif number is None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address.host, address.port))
        except OSError as error:
            raise address_error(error, str(address)) from None
        yield sock


def listen(sock: socket.socket) -> None:
    """Let clients connect. One that stalls while it is answered is cut off, where the system can do it."""
    if sock.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED)  # the connections take it over
    try:
        sock.listen(_BACKLOG)
    except OSError as error:
        raise address_error(error, address_of(sock)) from None


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


def address_of(sock: socket.socket) -> str:
    """Return the address of a socket, such as 127.0.0.1:8080, [::1]:8080 or unix:PATH."""
    name = sock.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


def hosts_of(sock: socket.socket, place: str, settings: Settings) -> frozenset[str] | None:
    """Return the names with dots by which a server that only this machine reaches may be asked; None for any."""
    name = sock.getsockname()
    if isinstance(name, str) or not ip_address(name[0]).is_loopback:
        return None
    return frozenset({Address.of(place).host.lower(), *map(str.lower, settings.hosts)})


def page_url(settings: Settings, address: str) -> str | None:
    """Return where a browser on this machine finds the page; None where it cannot, or there is none."""
    host, _, port = address.rpartition(":")
    if not settings.page or address.startswith("unix:"):
        return None
    local = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    return f"{'https' if settings.tls else 'http'}://{local}:{port}{settings.root_path}/"


def address_error(error: OSError, address: str) -> WhitenError:
    """Return the error of an address that cannot be listened on."""
    return WhitenError(f"{address} cannot be used: {error.strerror or error}; choose another address")
