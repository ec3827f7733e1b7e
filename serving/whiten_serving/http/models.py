"""Open the bundles that are served, hold their models, and replace them while requests run."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.encoder import Encoder, embedder_of
from whiten_runtime.errors import ProviderError, WhitenError
from whiten_runtime.opened_bundle import proof_of, providers_of
from whiten_runtime.ort.session import parse_provider
from whiten_serving.encoder_queue import EncoderQueue, ignore
from whiten_serving.http.errors import ApiError
from whiten_serving.scheduler import Scheduler
from whiten_serving.settings import Settings

_LOG = logging.getLogger("whiten.serving")


@dataclass(eq=False)
class ServedModel:
    """A model that is served, by a name by which requests ask for it; models of one bundle share a queue."""

    name: str
    queue: EncoderQueue
    parity: float | None = None  # worst cosine with the reference's vectors on this machine; None if not measured
    owns: bool = False  # whether the encoder is closed with it
    opened: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def encoder(self) -> Encoder:
        """Return the encoder itself."""
        return self.queue.encoder

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the manifest, which has the hashes of all files of the bundle, in hexadecimal."""
        return self.encoder.bundle_sha256

    @property
    def manifest(self) -> Manifest:
        """Return the bundle's manifest, as it was when the bundle was opened."""
        return self.encoder.manifest

    def is_failing(self) -> bool:
        """Return whether every text fails, of late; if so, a text is queued that will show whether it still is so."""
        scheduler, runner = self.queue.scheduler, self.queue.runner
        if not scheduler.failing_seconds(runner):
            return False
        if not scheduler.stats_of(runner).requests:
            with suppress(WhitenError):
                self.queue.put(self.queue.request("a"), ignore)
        return True

    async def close(self, wait: bool = True) -> None:
        """Compute what waits, or fail it, and close the encoder if it was opened for this model."""
        await asyncio.to_thread(self.queue.close, wait)
        if self.owns:
            self.encoder.close()


class Models:
    """The models that are served, by name, in order. Use it in the event loop's thread.

    Open all of them on one scheduler, so that replacing one closes nothing that others use.
    """

    def __init__(self, served: Iterable[ServedModel]) -> None:
        self._served = {one.name: one for one in served}
        self._said = False  # whether the log says that the only model answers requests that name another one
        self._closing: set[asyncio.Task[None]] = set()
        self._uses: dict[EncoderQueue, int] = {}  # requests that run now

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._served.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the models."""
        return tuple(self._served)

    @property
    def scheduler(self) -> Scheduler:
        """Return the scheduler that all models share."""
        return next(iter(self._served.values())).queue.scheduler

    def get(self, name: str | None) -> ServedModel:
        """Return the model of a name. Where a single one is served, it is returned for any name, and for none."""
        if len(self._served) > 1:
            return self.named(name)
        served = next(iter(self._served.values()))
        if name and not self._said and name.removesuffix(":latest") != served.name:
            self._said = True
            _LOG.info(f"requests name another model than {served.name!r}, which answers them: no other one is served")
        return served

    def named(self, name: str | None) -> ServedModel:
        """Return the model of exactly this name, with or without Ollama's ":latest"."""
        served = self._served.get(name or "") or self._served.get((name or "").removesuffix(":latest"))
        if served is None:
            asked = f"model {name[:80]!r} not found" if name else "the request names no model"
            raise ApiError("model_not_found", f"{asked}; those served are {', '.join(self._served)}", "model")
        return served

    @contextmanager
    def using(self, served: ServedModel) -> Iterator[ServedModel]:
        """Keep a model open during the block, even if it is replaced meanwhile."""
        uses, queue = self._uses, served.queue
        uses[queue] = uses.get(queue, 0) + 1
        try:
            yield served
        finally:
            uses[queue] -= 1
            if self._served[served.name] is not served:
                self._close_unused(served)

    def replace(self, served: ServedModel) -> None:
        """Put a model in the place of that of its name: later requests get the new one, running ones keep the old one.

        The old one is closed when its last request has ended.
        """
        old = self._served[served.name]
        self._served[served.name] = served
        self._close_unused(old)

    def _close_unused(self, served: ServedModel) -> None:
        """Close a model of which no request runs, and whose bundle is served no more."""
        if not self._uses.get(served.queue) and all(other.queue is not served.queue for other in self):
            self._uses.pop(served.queue, None)
            task = asyncio.get_running_loop().create_task(served.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self, wait: bool = True) -> None:
        """Close all models, those that were replaced too; compute what waits, or fail it."""
        queues = {served.queue: served for served in self}
        await asyncio.gather(*self._closing, *(served.close(wait) for served in queues.values()))


def open_encoder(bundle: str, settings: Settings) -> tuple[Encoder, float | None]:
    """Open a bundle, and prove its parity, or run it once if that is switched off, so that all sessions are made.

    Returns the worst cosine too, None if it was not measured. The memory that this took is given back.
    """
    providers = None if settings.device is None else [parse_provider(settings.device)]
    encoder, parity = Encoder(bundle, providers, memory_limit=settings.memory_limit or None), None
    try:
        engine = embedder_of(encoder).engine
        if engine.can_record:  # single texts are computed 1.6 to 3 times as fast by CUDA graphs
            try:
                engine.record(encoder.max_seq_length, encoder.manifest.precision)
            except ProviderError as error:
                _LOG.warning("single texts are computed without CUDA graphs: %s", error)
        if settings.verify:
            proof = proof_of(encoder, quick=True)
            proof.check(bundle, "; --no-verify serves it all the same")
            parity = proof.agreement.min_cosine
        else:
            encoder.warmup()
        engine.trim()
    except BaseException:
        encoder.close()
        raise
    return encoder, parity


def make_scheduler(encoders: Sequence[Encoder], settings: Settings) -> Scheduler:
    """Return the scheduler that all models share, with as many lanes as the model that can use the most."""
    lanes = max(embedder_of(encoder).engine.schedule.workers for encoder in encoders)
    return Scheduler(lanes, max_wait=settings.max_wait)


def make_models(
    names: Sequence[str], encoder: Encoder, parity: float | None, scheduler: Scheduler
) -> list[ServedModel]:
    """Return models for the application, which share an encoder, and close it with the last of them."""
    queue = EncoderQueue(encoder, scheduler)
    return [ServedModel(name, queue, parity, owns=True) for name in names]


def describe(model: ServedModel) -> str:
    """Return one line about a model: dimension, precision, space, parity."""
    manifest, encoder = model.manifest, model.encoder
    parity = "parity not checked"
    if model.parity is not None:
        parity = f"parity proven on {providers_of(encoder)}: worst cosine {model.parity:.7f}"
    return f"{model.name}: {manifest.dimension} dimensions, {manifest.precision}, space {encoder.space}; {parity}"
