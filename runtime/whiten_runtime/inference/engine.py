"""Token ids through a graph: batches are planned, padded, run side by side, and handed back."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.bundle import EXTERNAL_DATA_FILE
from whiten_runtime.errors import BundleError, IntegrityError, ProviderError, UsageError
from whiten_runtime.inference.batching import Schedule, pad_batch
from whiten_runtime.inference.cuda_graphs import Recorded, recorded_lengths, recording, records
from whiten_runtime.ort.placement import placement_of
from whiten_runtime.ort.processor import default_threads
from whiten_runtime.ort.providers import NVIDIA, provider_name
from whiten_runtime.ort.session import ForkSafeSession, SessionOptions, create_session

OUTPUT = "sentence_embedding"
UNWHITENED_OUTPUT = "unwhitened_embedding"

_ONCE_ONLY = 1 << 30
"""Bytes of a graph from which it is never held twice."""

_LITTLE_WORK = 700e6
"""Bytes of a graph times tokens of a batch below which threads cost more than they save."""

_TRIED = ([2, 0, 3, 1, 3, 2, 1, 0, 3] * 15, [1, 3, 2], [3, 1, 2, 2, 0])
"""Token ids that every vocabulary has; the text that is compared is neither the first nor the longest."""

_TRIED_WIDTHS = (9, 16)
"""Tokens to which it is padded: kernels differ by whether they are a multiple of 8."""

_TOLERATED = 0.05
"""Difference of two vectors of one text, by the norm of vectors, up to which they are the same: float16 gives 0.01."""

_USUAL_TOKENS = 16
"""Tokens of a batch that comes alone, as queries do: shorter ones have the same session, which is made first."""


class Engine:
    """One graph, run in two ways.

    A batch that comes alone is run by all threads at once, if that is worth their while. Batches of one call are run
    side by side, each by one thread: no thread waits for another at every operator, and each finds in its processor's
    cache what it has just written. Each way has a session of its own, with a copy of the weights, made when needed; on
    a GPU they share one.

    Args:
        model: an ONNX file that takes `input_ids` and `attention_mask`.
        pad_token_id: what pads `input_ids`.
        options: how the session is created.
        value: a value of the graph that can be computed even if it is not among its outputs, float32 [batch_size, k].

    Attributes:
        providers: execution providers that are active, in order of preference.
        placement: where the nodes are.
        schedule: how the texts of a call become runs.

    Raises:
        BundleError: onnxruntime does not accept the model, or it has other inputs or outputs.
        ProviderError: a provider is not available or not active.
    """

    def __init__(
        self, model: Path, pad_token_id: int, options: SessionOptions | None = None, value: str = OUTPUT
    ) -> None:
        settings = options or SessionOptions()
        if any(map(records, settings.providers)):
            raise UsageError(
                "enable_cuda_graph would replay the first text for every other; pass cuda_graphs=True instead"
            )
        original = _identity(model)

        def unchanged() -> bool:
            return _identity(model) == original

        def create(threads: int | None, options: SessionOptions = settings) -> Any:
            if not unchanged():
                raise IntegrityError(f"{model}: replaced since it was opened; open it again, or restart the service")
            return create_session(model, options, threads, None if value == OUTPUT else value)

        self._unchanged: Callable[[], bool] = unchanged
        self._size = _size(model)
        self._turns: AbstractContextManager[object] = nullcontext()
        if provider_name(settings.providers[0]) in NVIDIA:
            self.schedule = Schedule.on_gpu()
            self._turns = BoundedSemaphore(self.schedule.lanes)  # of all callers: each run takes memory of the GPU
        else:
            threads = settings.threads or default_threads()
            self.schedule = Schedule.on_cpu(threads, threads if settings.on_cpu and self._size < _ONCE_ONLY else 1)
        self._settings, self._create = settings, create
        self._together = ForkSafeSession(lambda: create(None))
        apart = self.schedule.split and self.schedule.lanes > 1
        self._beside = ForkSafeSession(lambda: create(1)) if apart else self._together
        self._recorded: ForkSafeSession | None = None
        self._was_together = False
        self._pad_token_id = pad_token_id
        session = self._session_for(_USUAL_TOKENS).get()
        self._widths = _checked_widths(session, model, value)
        self.providers: list[str] = session.get_providers()
        self.placement = placement_of(session)

    def gives(self, value: str) -> bool:
        """Whether this is an output."""
        return value in self._widths

    def width_of(self, *values: str) -> int:
        """Coordinates of these outputs together.

        Raises:
            KeyError: the graph has no such output.
        """
        return sum(self._widths[value] for value in values)

    def run(
        self, ids: Sequence[Sequence[int]], batch_size: int | None = None, values: Sequence[str] = (OUTPUT,)
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """Yield (indices into `ids`, their vectors [len(indices), k]) batch by batch, in no promised order.

        Args:
            ids: token ids of each text.
            batch_size: texts per run at most, or None for no limit but that of tokens.
            values: outputs to compute; of several, the vectors stand side by side.
        """
        if len(ids) == 1 and self._recorded is not None and values == (OUTPUT,):
            recorded: Recorded = self._recorded.get()
            if recorded.takes(len(ids[0])):
                yield np.zeros(1, np.intp), recorded.run(ids[0])
                return
        groups, lanes = self.schedule.plan([len(row) for row in ids], batch_size)
        if lanes < 2:
            for group in groups:
                yield group, self.run_batch(self._feed(ids, group), values)
            return
        if self._beside is not self._together and self._together.alive and not self._was_together and self._unchanged():
            self._together.release()
        session = self._usable(self._beside, self._together)

        def run_beside(group: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
            return group, self._run(session, self._feed(ids, group), values)

        with ThreadPoolExecutor(lanes, "whiten-run") as executor:
            try:
                results = executor.map(run_beside, groups)
            except RuntimeError:  # no more threads: the interpreter is ending, or the system's limit is reached
                results = map(run_beside, groups)
            yield from results

    def run_batch(self, feed: dict[str, NDArray[np.int64]], values: Sequence[str] = (OUTPUT,)) -> NDArray[np.float32]:
        """Run one padded batch; float32 [batch_size, k]. Safe to call from several threads at once."""
        session = self._session_for(feed["input_ids"].size)
        self._was_together |= session is self._together
        return self._run(session, feed, values)

    def check_padding(self, longest: int, value: str = OUTPUT) -> None:
        """Check that a padded text has the vector that it has alone.

        CUDA has several kernels for attention, and which of them runs depends on the GPU, the shapes and the
        environment. Should one of them misread the lengths of the texts, this tells, with a few runs.

        Args:
            longest: tokens that a text may have.
            value: the output that is wanted.

        Raises:
            ProviderError: it has another one.
        """
        for width in sorted({min(width, longest) for width in _TRIED_WIDTHS}):
            texts = [text[:width] for text in _TRIED]
            alone = self.run_batch(pad_batch(texts[1:2], self._pad_token_id), (value,))
            padded = self.run_batch(pad_batch(texts, self._pad_token_id), (value,))
            if (difference := _difference(alone[0], padded[1], padded)) is not None:
                raise ProviderError(
                    f"{self.providers[0]} gives a padded text another vector than the same text alone ({difference} "
                    "of the norm away); export the model with --target cpu, or unset "
                    "ORT_DISABLE_MEMORY_EFFICIENT_ATTENTION"
                )

    def record(self, longest: int) -> None:
        """From now on, run texts that come alone from recordings, in a session of their own.

        Args:
            longest: tokens that a text may have.

        Raises:
            ProviderError: the graph cannot be recorded, or recordings give other vectors.
        """
        settings = recording(self._settings)
        width, pad = self._widths[OUTPUT], self._pad_token_id

        def create() -> Recorded:
            return Recorded(lambda: self._create(None, settings), settings.providers[0], OUTPUT, width, pad, longest)

        recorded = ForkSafeSession(create)
        try:
            made: Recorded = recorded.get()
        except ProviderError as error:
            raise ProviderError(f"this graph cannot be recorded, leave cuda_graphs out: {error}") from error
        for length in recorded_lengths(longest):
            ids = _TRIED[0][: max(1, length - 1)]
            usual = self.run_batch(pad_batch([ids], pad))
            if (difference := _difference(made.run(ids)[0], usual[0], usual)) is not None:
                raise ProviderError(
                    f"a text of {len(ids)} tokens has another vector when it is replayed as a CUDA graph ({difference} "
                    "of the norm away); leave cuda_graphs out"
                )
        self._recorded = recorded

    def check_open(self) -> None:
        """Raise WhitenError if `close` was called."""
        self._together.check_open()

    def close(self) -> None:
        """Free the model."""
        for session in (self._together, self._beside, self._recorded):
            if session is not None:
                session.close()

    def _run(
        self, session: ForkSafeSession, feed: dict[str, NDArray[np.int64]], values: Sequence[str]
    ) -> NDArray[np.float32]:
        with self._turns:
            vectors = session.run(values, feed)
        return vectors[0] if len(vectors) == 1 else np.concatenate(vectors, axis=1)

    def _session_for(self, tokens: int) -> ForkSafeSession:
        """The session for a batch that comes alone."""
        sessions = self._beside, self._together
        little = self._size * max(tokens, _USUAL_TOKENS) < _LITTLE_WORK
        return self._usable(*(sessions if little else reversed(sessions)))

    def _usable(self, wanted: ForkSafeSession, other: ForkSafeSession) -> ForkSafeSession:
        """The other session where the wanted one would have to be made of a file that was replaced."""
        return other if other.alive and not wanted.alive and not self._unchanged() else wanted

    def _feed(self, ids: Sequence[Sequence[int]], group: NDArray[np.intp]) -> dict[str, NDArray[np.int64]]:
        return pad_batch([ids[index] for index in group], self._pad_token_id)


def _size(model: Path) -> int:
    """Bytes of a graph and of its external data; 0 where there is no file."""
    return sum(file.stat().st_size for file in _files(model))


def _files(model: Path) -> list[Path]:
    """A graph and its external data, those that are there."""
    return [file for file in (model, model.with_name(Path(EXTERNAL_DATA_FILE).name)) if file.is_file()]


def _identity(model: Path) -> list[tuple[int, ...]]:
    """What changes when a graph or its weights are replaced."""
    stats = [file.stat() for file in _files(model)]
    return [(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]


def _difference(one: NDArray[np.float32], other: NDArray[np.float32], usual: NDArray[np.float32]) -> str | None:
    """How far apart two vectors of one text are, by the norm of the usual ones; None if that may be rounding."""
    distance = float(np.linalg.norm(one - other) / np.linalg.norm(usual, axis=1).mean())
    return None if distance <= _TOLERATED else f"{distance:.2g}"  # not a number is not small either


def _checked_widths(session: Any, model: Path, value: str) -> dict[str, int]:
    """Coordinates of the outputs that are vectors; the graph must take token ids and a mask, and nothing else."""
    inputs = {value.name: value.type for value in session.get_inputs()}
    if inputs != {"input_ids": "tensor(int64)", "attention_mask": "tensor(int64)"}:
        raise BundleError(f"{model}: takes {inputs}, not input_ids and attention_mask as int64; export the model again")
    widths = {
        output.name: output.shape[1]
        for output in session.get_outputs()
        if output.type == "tensor(float)" and len(output.shape) == 2 and isinstance(output.shape[1], int)
    }
    if value not in widths:
        raise BundleError(f"{model}: has no output {value}, float32 [batch_size, k]; export the model again")
    return widths
