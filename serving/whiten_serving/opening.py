"""Open what is served: bundles, whose parity is proven on this machine, and the socket; watch the drift of texts."""

import copy
import os
import socket
import stat
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client.core import GaugeMetricFamily, Metric

from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.parity import Agreement
from whiten_runtime.errors import IntegrityError, UsageError, WhitenError
from whiten_runtime.files.replacing import lock_file
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.inference.engine import TokenRunner
from whiten_runtime.opened.encoder import Encoder
from whiten_serving.async_encoder import AsyncEncoder
from whiten_serving.http.models import ServedModel
from whiten_serving.requests import BatchRun
from whiten_serving.scheduler import Scheduler
from whiten_serving.settings import ModelChoice, Settings

if TYPE_CHECKING:  # the mathematics of whitening, which is needed where drift is measured only
    from whiten_whitening.drift import Drift, DriftMonitor

_OWNER_AND_GROUP = 0o660
"""Who may connect to a Unix socket."""

_SO_ATTACH_FILTER = 26
_WITHOUT_SYN = (
    (0x30, 0, 0, 13),  # load the byte with the flags of TCP
    (0x45, 0, 1, 0x02),  # if it has SYN, go on; if not, skip a step
    (0x06, 0, 0, 0),  # drop the segment
    (0x06, 0, 0, 0xFFFFFFFF),  # keep the segment
)
"""Steps of a filter for sockets, which drops the first segment of each new connection: linux/filter.h, socket(7)."""

DRIFT_WINDOW = 5000
"""Vectors after which a window of the traffic is complete. The last complete one and the present one are reported."""

_MEASURES = {
    "mean_shift": "Distance of the mean of the last texts from that of the corpus, in standard deviations",
    "spectrum_ratio": "Mean variance of the last texts over the corpus's directions; 1 for the corpus itself",
    "average_cosine": "Mean cosine over all pairs of the last texts; near 0 for the corpus",
    "iso_score": "IsoScore of the last texts; 1 for the corpus itself",
    "n": "Vectors that the drift is measured on",
}


def open_encoder(choice: ModelChoice, settings: Settings) -> tuple[Encoder, Agreement | None]:
    """Open one bundle, and prove its parity, or run it once if that is switched off, so that all sessions are made.

    The memory that this took, for long texts too, is given back.
    """
    encoder = Encoder(choice.bundle, threads=settings.threads, device=settings.device)
    try:
        agreement = _proven(choice, encoder) if settings.verify else None
        if agreement is None:
            encoder.warmup()
        encoder.token_runner().trim()
    except BaseException:
        encoder.close()
        raise
    return encoder, agreement


def _proven(choice: ModelChoice, encoder: Encoder) -> Agreement:
    """Embed the bundle's probes on this machine, and return their distance to the reference's vectors."""
    proof = encoder._proof()
    proof.check(choice.bundle, "; --no-verify serves it all the same")
    return proof.agreement


def make_scheduler(encoders: Sequence[Encoder], settings: Settings) -> Scheduler:
    """Return the scheduler that all models share, with as many lanes as the model that can use the most."""
    return Scheduler(
        max(encoder.token_runner().schedule.workers for encoder in encoders),
        settings.max_batch_tokens,
        max_queue_tokens=settings.max_queue_tokens,
        max_wait=settings.max_wait,
    )


def served(choice: ModelChoice, encoder: Encoder, agreement: Agreement | None, scheduler: Scheduler) -> ServedModel:
    """Return a model for the application, which closes its encoder with it."""
    parity = None if agreement is None else agreement.min_cosine
    return ServedModel(choice.name, AsyncEncoder(encoder, scheduler=scheduler), parity, owns=True)


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


def bind(settings: Settings) -> tuple[socket.socket, str]:
    """Return the socket that the settings name, and its address. It does not listen yet: a client is refused."""
    if settings.fd is not None:
        try:
            inherited = socket.socket(fileno=settings.fd)
        except OSError as error:
            message = f"--fd is {settings.fd}, which is no socket: {error.strerror}; 3 is systemd's first"
            raise UsageError(message) from None
        return inherited, _written(inherited)
    if settings.uds is not None:
        sock = _unix(Path(settings.uds))
        return sock, f"unix:{settings.uds}"
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise UsageError(f"--host is '{settings.host}', which has no address; wanted a name or an address") from None
    family, _, _, _, place = found[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # on Windows it would let two processes share the port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place)
    except OSError as error:
        sock.close()
        raise refused(error, f"{settings.host}:{settings.port}") from None
    return sock, _written(sock)


def refuse_connections(listener: socket.socket, settings: Settings) -> None:
    """Take no more connections; those that wait to be accepted stay, which closing the socket would reset."""
    if settings.uds is not None:
        Path(settings.uds).unlink(missing_ok=True)
    elif settings.fd is None and sys.platform == "linux":  # an inherited socket goes on for other processes
        program = array("B", b"".join(struct.pack("HBBI", *step) for step in _WITHOUT_SYN))
        address, _ = program.buffer_info()
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_WITHOUT_SYN), address))


def _written(sock: socket.socket) -> str:
    name = sock.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    return f"[{name[0]}]:{name[1]}" if sock.family == socket.AF_INET6 else f"{name[0]}:{name[1]}"


def _unix(path: Path) -> socket.socket:
    """Return a Unix socket, in the place of one whose process has ended."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists():
            if not stat.S_ISSOCK(path.stat().st_mode):
                raise WhitenError(f"{path}: exists and is no socket; choose another path (--uds)")
            if sock.connect_ex(str(path)) == 0:
                raise _taken(path)
            path.unlink()
        sock.bind(str(path))
        path.chmod(_OWNER_AND_GROUP)
    except OSError as error:
        sock.close()
        raise _no_socket(path, error) from None
    except WhitenError:
        sock.close()
        raise
    return sock


def _no_socket(path: Path, error: OSError) -> WhitenError:
    return WhitenError(f"{path}: cannot make a Unix socket there: {error.strerror or error}")


def _taken(path: Path) -> WhitenError:
    return WhitenError(f"{path}: another process listens there; stop it, or choose another path (--uds)")


def refused(error: OSError, address: str) -> WhitenError:
    """Return the error of an address that cannot be listened on."""
    return WhitenError(f"{address} cannot be used: {error.strerror}; choose another port (--port) or address (--host)")


class DriftWatch:
    """Measures how far the texts of each model are from its whitening's corpus, and shows it as gauges.

    Give `on_batch` to the scheduler, which calls it in its lanes.
    """

    def __init__(self) -> None:
        self._names: dict[str, TokenRunner] = {}
        self._of: dict[TokenRunner, _Traffic] = {}

    def watch(self, model: ServedModel) -> None:
        """Measure the texts of a model from now on, in place of one of its name."""
        from whiten_whitening.drift import DriftMonitor

        monitor = DriftMonitor(model.encoder.path)
        if monitor.manifest != model.manifest:
            raise IntegrityError(f"{model.encoder.path}: was replaced while it was opened; open it again")
        traffic, runner = _Traffic(monitor), model.embeds.batcher.runner
        self._of = {one: kept for one, kept in self._of.items() if one is not self._names.get(model.name)}
        self._of[runner] = traffic
        self._names[model.name] = runner

    def on_batch(self, run: BatchRun) -> None:
        """Add the vectors of a batch."""
        if run.runner in self._of:
            self._of[run.runner].add(run.vectors)

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges; a model of which fewer than two vectors were seen has none."""
        found = {name: drift for name, runner in self._names.items() if (drift := self._of[runner].report())}
        for measure, meaning in _MEASURES.items():
            name = "vectors" if measure == "n" else measure
            family = GaugeMetricFamily(f"whiten_drift_{name}", meaning, labels=["model"])
            for model, drift in found.items():
                family.add_metric([model], float(getattr(drift, measure)))
            yield family
        meaning = "1 for the verdict of whiten drift on the last texts"
        verdicts = GaugeMetricFamily("whiten_drift_verdict", meaning, labels=["model", "verdict"])
        for model, drift in found.items():
            verdicts.add_metric([model, drift.verdict], 1.0)
        yield verdicts


class _Traffic:
    """Measures the last vectors of one model: those of the last complete window, and of the present one."""

    def __init__(self, monitor: "DriftMonitor") -> None:
        monitor.update(np.zeros((1, monitor.manifest.dimension), np.float32))  # refuses bundles that it cannot measure
        monitor.reset()
        self._monitor = monitor
        self._complete = copy.copy(monitor)
        self._seen = 0
        self._lock = Lock()

    def add(self, vectors: "np.typing.NDArray[np.float32]") -> None:
        """Add the vectors of a batch, unless one is not finite."""
        with self._lock:
            try:
                self._monitor.update(vectors)
            except UsageError:
                return
            self._seen += len(vectors)
            if self._seen >= DRIFT_WINDOW:
                self._complete = copy.copy(self._monitor)
                self._monitor.reset()
                self._seen = 0

    def report(self) -> "Drift | None":
        """Return the drift of the last vectors; None for fewer than two."""
        with self._lock:
            both = copy.copy(self._complete).merge(self._monitor)
        try:
            return both.report()
        except UsageError:
            return None
