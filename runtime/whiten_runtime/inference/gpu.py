"""Run batches on NVIDIA GPUs: large batches, few at a time, and CUDA graphs for single-text requests."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.bundle.manifest import Precision
from whiten_runtime.errors import ProviderError, RunError, WhitenError, one_line
from whiten_runtime.inference.batching import Schedule, pad_batch
from whiten_runtime.inference.engine import Engine, Feed, ForkSafeSession, GraphFile, is_out_of_memory
from whiten_runtime.ort.process import FairSemaphore, native_call
from whiten_runtime.ort.session import (
    CUDA_PROVIDER,
    Provider,
    SessionOptions,
    import_onnxruntime,
    provider_name,
    provider_options,
)

Vectors = list[NDArray[np.float32]]
"""Outputs of a run, each float32 [batch_size, k]."""

LENGTHS = (8, 16, 32, 64, 128)
"""Numbers of tokens to which texts are padded. Longer texts keep the GPU busy enough without a CUDA graph."""

_GRAPH_ID, _OPTION = "gpu_graph_id", "enable_cuda_graph"


class CudaGraphRunner:
    """Runs one text at a time on a session that has recorded CUDA graphs of several lengths. Thread-safe."""

    def __init__(
        self,
        create: Callable[[], Any],
        provider: Provider,
        output: str,
        width: int,
        pad_token_id: int,
        longest: int,
    ) -> None:
        self._pad_token_id = pad_token_id
        self._slots: dict[int, _Slot] = {}
        self._thread = ThreadPoolExecutor(1, "whiten-recorded")

        def record() -> Any:
            session, device = create(), device_of(provider)
            self._slots = {length: _slot(session, device, output, width, length) for length in graph_lengths(longest)}
            return session

        try:
            recording = self._thread.submit(record)
        except RuntimeError as error:
            raise ProviderError(f"a CUDA graph needs a thread of its own ({error})") from error
        self._session = recording.result()
        for length in reversed(self._slots):  # the longest needs most memory, which the others use too
            try:
                self.run([pad_token_id] * length)
                self.run([pad_token_id] * length)  # from the second run on it is replayed
            except WhitenError as error:
                raise ProviderError(f"texts of {length} tokens cannot be recorded as a CUDA graph: {error}") from error

    def run(self, ids: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the vector of one text, float32 [1, k]; None if it is longer than what was recorded."""
        length = next((length for length in self._slots if length >= len(ids)), None)
        if length is None:
            return None
        feed = pad_batch([ids], self._pad_token_id, length)
        try:
            running = self._thread.submit(self._run, self._slots[length], feed)
        except RuntimeError:  # the interpreter is ending: the session that records nothing computes in any thread
            return None
        try:
            return running.result()
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise RunError(f"onnxruntime failed: {one_line(error)}") from error

    def _run(self, slot: "_Slot", feed: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        for name, array in feed.items():
            slot.inputs[name].update_inplace(array)
        with native_call:
            self._session.run_with_iobinding(slot.binding, slot.options)
        vectors: NDArray[np.float32] = slot.output.numpy()
        return vectors.copy()


class _Slot(NamedTuple):
    inputs: dict[str, Any]
    output: Any
    binding: Any
    options: Any


def graph_lengths(longest: int) -> tuple[int, ...]:
    """Return those of `LENGTHS` that a text may have, and `longest` if it is shorter than the last of them."""
    return tuple(sorted({min(length, longest) for length in LENGTHS}))


def with_cuda_graph(options: SessionOptions) -> SessionOptions:
    first, *others = options.providers
    if provider_name(first) != CUDA_PROVIDER:
        return options
    return replace(options, providers=((CUDA_PROVIDER, {**provider_options(first), _OPTION: 1}), *others))


def enables_cuda_graph(provider: Provider) -> bool:
    """Return whether a provider has the option that records every run, whatever its shape."""
    return str(provider_options(provider).get(_OPTION, 0)).lower() in ("1", "true")


def device_of(provider: Provider) -> tuple[str, int]:
    if provider_name(provider) != CUDA_PROVIDER:
        return "cpu", 0
    return "cuda", int(provider_options(provider).get("device_id", 0))


def _slot(session: Any, device: tuple[str, int], output: str, width: int, length: int) -> _Slot:
    ort = import_onnxruntime()
    inputs = {
        name: ort.OrtValue.ortvalue_from_shape_and_type([1, length], np.int64, *device)
        for name in ("input_ids", "attention_mask")
    }
    vectors = ort.OrtValue.ortvalue_from_shape_and_type([1, width], np.float32, *device)
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output(output, vectors)
    options = ort.RunOptions()
    options.add_run_config_entry(_GRAPH_ID, str(length))
    return _Slot(inputs, vectors, binding, options)


_TEXTS = ([2, 0, 3, 1, 3, 2, 1, 0, 3] * 64, [1, 3, 2], [3, 1, 2, 2, 0])
"""Token ids that every vocabulary has; the text that is compared is neither the first nor the longest."""

_WIDTHS = (9, 16, 127, 128, 129, 256, 257, 384, 512, 513)
"""Numbers of tokens to which that text is padded: kernels differ by whether the number is a multiple of 8, and change
at 128, 256, 384 and 512."""

_TOLERATED: dict[Precision, float] = {"fp32": 1e-3, "fp16": 2e-2, "int8": 2e-2}
"""Distance of two vectors of one text, relative to the norm of vectors, up to which they agree. On an H100, 15 widths
up to 512 gave at most 9e-7 in float32 and 1.2e-3 in float16; a kernel that reads padding as text gives .1 and more."""


class GpuEngine(Engine):
    def __init__(self, graph: GraphFile, options: SessionOptions, pad_token_id: int) -> None:
        self.graph = graph
        self._options = options
        self._session = ForkSafeSession(lambda: graph.create_session(None))
        self._cuda_graphs: ForkSafeSession | None = None
        super().__init__(graph, self._session.get(), Schedule.on_gpu(options.tuning.gpu_token_budget), pad_token_id)
        self._running = FairSemaphore()  # batches of all callers: each takes GPU memory

    def _run(self, feed: Feed, outputs: Sequence[str], side_by_side: bool) -> Vectors:
        """Run a batch; replay a CUDA graph for a single text if `record` was called and the text is short enough."""
        ids, mask = feed["input_ids"], feed["attention_mask"]
        if self._cuda_graphs is not None and tuple(outputs) == (OUTPUT,) and len(ids) == 1 and (mask == 1).all():
            graphs: CudaGraphRunner = self._cuda_graphs.get()
            if (vectors := graphs.run(ids[0].tolist())) is not None:
                return [vectors]
        return self._run_as_it_fits(feed, outputs)

    @property
    def can_record(self) -> bool:
        """Return whether the provider has CUDA graphs, and the graph is small enough to be held twice."""
        small = self.graph.bytes < self._options.tuning.largest_held_twice
        return provider_name(self._options.providers[0]) == CUDA_PROVIDER and small

    def record(self, longest: int, precision: Precision) -> None:
        """Record CUDA graphs for single texts, in a separate session, and use them from now on."""
        options, pad, width = with_cuda_graph(self._options), self._pad_token_id, self.width_of(OUTPUT)

        def create() -> CudaGraphRunner:
            return CudaGraphRunner(
                lambda: self.graph.create_session(None, options), options.providers[0], OUTPUT, width, pad, longest
            )

        recorded = ForkSafeSession(create)
        try:
            made: CudaGraphRunner = recorded.get()
        except ProviderError as error:
            raise ProviderError(f"this graph cannot be recorded, leave cuda_graphs out: {error}") from error
        for length in graph_lengths(longest):
            ids = _TEXTS[0][: max(1, length - 1)]
            (usual,) = self._run_as_it_fits(self.feed([ids]), (OUTPUT,))
            replayed = made.run(ids)
            assert replayed is not None  # a graph of this length was recorded
            if (difference := _difference(replayed[0], usual[0], usual, precision)) is not None:
                raise ProviderError(
                    f"a text of {len(ids)} tokens has another vector when it is replayed as a CUDA graph ({difference} "
                    "of the norm away); leave cuda_graphs out"
                )
        self._cuda_graphs = recorded

    def check_open(self) -> None:
        """Raise ClosedError if `close` was called."""
        self._session.check_open()

    def close(self) -> None:
        self._session.close()
        if self._cuda_graphs is not None:
            self._cuda_graphs.close()

    def _run_as_it_fits(self, feed: Feed, outputs: Sequence[str]) -> Vectors:
        """Run a batch, and in halves, alone on the GPU, if it has too little memory for it."""
        most = self.schedule.workers
        try:
            with self._running.hold(1, most):
                return self._session.run(outputs, feed)
        except WhitenError as error:
            if not is_out_of_memory(error):
                raise
        with self._running.hold(most, most):
            return run_in_parts(partial(self._session.run, outputs), feed)


def run_in_parts(run: Callable[[Feed], Vectors], feed: Feed) -> Vectors:
    """Run a batch, and in halves if the GPU has too little memory for it."""
    try:
        return run(feed)
    except WhitenError as error:
        texts = len(feed["input_ids"])
        if not is_out_of_memory(error):
            raise
        if texts == 1:
            tokens = feed["input_ids"].shape[1]
            raise RunError(
                f"the GPU has too little memory for one text of {tokens} tokens; export with a smaller "
                f"--max-length, raise gpu_mem_limit, or use the CPU ({error})"
            ) from error
    middle = (texts + 1) // 2
    halves = [{name: rows[part] for name, rows in feed.items()} for part in (slice(middle), slice(middle, None))]
    parts = [run_in_parts(run, _narrowed(half)) for half in halves]
    return [np.concatenate(rows) for rows in zip(*parts, strict=True)]


def _narrowed(feed: Feed) -> Feed:
    """Return a batch without the columns in which no text has a token."""
    used = np.flatnonzero((feed["attention_mask"] != 0).sum(axis=0))
    width = int(used.max(initial=0)) + 1
    return {name: rows[:, :width] for name, rows in feed.items()}


def check_padding(engine: Engine, longest: int, precision: Precision) -> None:
    """Check that a padded text gets the same vector as the text alone.

    CUDA has several kernels for attention, and the GPU, the shapes and the environment decide which of them runs. A few
    batches show whether one of them misreads the lengths of the texts.
    """
    for width in sorted({min(width, longest) for width in _WIDTHS}):
        texts = [text[:width] for text in _TEXTS]
        alone, padded = engine.run_batch(texts[1:2]), engine.run_batch(texts)
        if (difference := _difference(alone[0], padded[1], padded, precision)) is not None:
            raise ProviderError(
                f"{engine.providers[0]} gives a text that is padded to {width} tokens another vector than the same "
                f"text alone ({difference} of the norm away); export the model with --target cpu, and unset "
                "ORT_DISABLE_FLASH_ATTENTION and ORT_DISABLE_MEMORY_EFFICIENT_ATTENTION if they are set"
            )


def _difference(
    vector: NDArray[np.float32], other: NDArray[np.float32], usual: NDArray[np.float32], precision: Precision
) -> str | None:
    """Return the distance of two vectors of a text, relative to the mean norm of `usual`; None if within rounding."""
    distance = float(np.linalg.norm(vector - other) / np.linalg.norm(usual, axis=1).mean())
    return None if distance <= _TOLERATED[precision] else f"{distance:.2g}"  # NaN fails the comparison
