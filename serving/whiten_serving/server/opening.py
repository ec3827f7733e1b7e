"""Open the bundles that are served, and prove their parity on this machine."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.parity import Agreement, gate_here
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import ParityError
from whiten_runtime.hub.locating import locate_bundle
from whiten_serving.async_encoder import AsyncEncoder
from whiten_serving.batching.bounds import Bounds
from whiten_serving.batching.lanes import Lanes
from whiten_serving.http.metrics import Metrics
from whiten_serving.http.models import ServedModel
from whiten_serving.settings.models import ModelChoice
from whiten_serving.settings.table import Settings

if TYPE_CHECKING:  # it imports the mathematics of whitening, which nothing else here needs
    from whiten_serving.server.drift import DriftWatch

_BFLOAT16 = "openvino:bf16"


@dataclass(frozen=True)
class Opened:
    """Holds a bundle that was opened to be served.

    Attributes:
        name: name of the model.
        encoder: its encoder.
        agreement: its distance to the reference on this machine; None if it was not measured.
        drift: measures the drift of its vectors; None if it is not asked for.
    """

    name: str
    encoder: Encoder
    agreement: Agreement | None
    drift: "DriftWatch | None"


class OwningEncoder(AsyncEncoder):
    """Is an `AsyncEncoder` that closes its encoder with itself."""

    async def close(self, wait: bool = True) -> None:
        """Take no more requests, compute what waits, and close the encoder."""
        await super().close(wait)
        self.batcher.encoder.close()


def open_model(choice: ModelChoice, settings: Settings) -> Opened:
    """Open one bundle, and prove its parity, or run it once if that is switched off, so that all sessions are made.

    The memory that this took, for long texts too, is given back.

    Raises:
        ParityError: its vectors are not those of its reference, on this machine.
        WhitenError: it cannot be opened, as in `Encoder`; or its drift cannot be measured.
    """
    encoder, drift = _opened(choice, settings)
    try:
        agreement = prove(choice, encoder) if settings.verify else None
        if agreement is None:
            encoder.warmup()
        encoder.token_runner().trim()
    except BaseException:
        encoder.close()
        raise
    return Opened(choice.name, encoder, agreement, drift)


def _opened(choice: ModelChoice, settings: Settings) -> "tuple[Encoder, DriftWatch | None]":
    if not settings.drift:
        return Encoder(choice.bundle, threads=settings.threads, device=settings.device), None
    from whiten_serving.server.drift import WatchedEncoder

    encoder = WatchedEncoder(choice.bundle, threads=settings.threads, device=settings.device)
    try:
        return encoder, encoder.watch_drift()
    except BaseException:
        encoder.close()
        raise


def open_models(choices: tuple[ModelChoice, ...], settings: Settings) -> list[Opened]:
    """Open all bundles, side by side.

    Raises:
        WhitenError: one cannot be opened; the others are closed again.
    """
    with ThreadPoolExecutor(len(choices), "whiten-open") as executor:
        futures = [executor.submit(open_model, choice, settings) for choice in choices]
    failed = next((error for future in futures if (error := future.exception())), None)
    if failed is not None:
        for future in futures:
            if not future.exception():
                future.result().encoder.close()
        raise failed
    return [future.result() for future in futures]


def prove(choice: ModelChoice, encoder: Encoder) -> Agreement:
    """Embed the bundle's probes on this machine, and return their distance to the reference's vectors.

    Raises:
        ParityError: a bound of the parity gate is not kept.
    """
    manifest = encoder.manifest
    agreement = encoder.verify()
    gate = gate_here(manifest, encoder.device == _BFLOAT16)
    if not gate.passes(agreement):
        reference = manifest.parity.reference.split(",")[0] if manifest.parity else "its reference"
        raise ParityError(
            f"{choice.bundle}: not what {reference} computed, on {encoder.providers[0]}: {agreement}; wanted {gate}; "
            "--no-verify serves it all the same"
        )
    return agreement


def make_lanes(opened: list[Opened], settings: Settings, metrics: Metrics) -> Lanes:
    """Return the lanes that all models share: as many as the model that wants the fewest takes."""
    schedules = [one.encoder.token_runner().schedule for one in opened]
    bounds = Bounds(settings.max_queue_tokens, settings.max_wait)
    budget = settings.max_batch_tokens or max(schedule.budget for schedule in schedules)
    return Lanes(min(schedule.workers for schedule in schedules), budget, bounds, metrics.watch)


def served(opened: Opened, lanes: Lanes) -> ServedModel:
    """Return an opened bundle as a model of the application."""
    return ServedModel(opened.name, OwningEncoder(opened.encoder, shared=lanes))


def replaced(choice: ModelChoice, digest: str) -> bool:
    """Return whether the bundle on the disk is another one than that with this digest.

    Raises:
        BundleError: there is no bundle any more.
    """
    manifest = read_manifest(locate_bundle(choice.bundle))
    return sha256(manifest.to_json()).hexdigest() != digest
