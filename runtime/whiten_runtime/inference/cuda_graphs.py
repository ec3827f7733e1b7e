"""Texts that come alone on a GPU: their kernels are recorded once and launched together, as a CUDA graph.

A network of a hundred kernels is launched one by one, which takes longer than one short text keeps the GPU busy. A CUDA
graph is one launch, but of arrays that have one shape and stay where they are: texts are padded to the next of some
lengths, each of which has its own arrays and its own recording. onnxruntime keeps recordings by thread, so one thread
makes them and replays them, whoever asks.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import ProviderError, WhitenError
from whiten_runtime.inference.batching import pad_batch
from whiten_runtime.ort.providers import CUDA_PROVIDER, Provider, import_onnxruntime, provider_name, provider_options
from whiten_runtime.ort.session import SessionOptions

LENGTHS = (8, 16, 32, 64, 128)
"""Tokens to which texts are padded. Longer texts keep the GPU busy enough without."""

_GRAPH_ID, _OPTION = "gpu_graph_id", "enable_cuda_graph"


class CudaGraphRunner:
    """A session that runs one text at a time, of lengths that it has recorded. Thread-safe.

    Args:
        create: makes a session, with options as by `with_cuda_graph`; called once, in the thread that uses it.
        provider: the first of its providers.
        output: float32 [batch_size, k].
        width: k.
        pad_token_id: what pads `input_ids`.
        longest: tokens that a text may have.

    Raises:
        ProviderError: the graph cannot be recorded, because parts of it run on the CPU for instance.
    """

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

        self._session = self._thread.submit(record).result()
        for length in reversed(self._slots):  # the longest needs most memory, the others find it there
            try:
                self.run([pad_token_id] * length)
                self.run([pad_token_id] * length)  # from the second run on it is replayed
            except WhitenError as error:
                raise ProviderError(f"texts of {length} tokens cannot be recorded as a CUDA graph: {error}") from error

    def takes(self, tokens: int) -> bool:
        """Whether a text of so many tokens was recorded."""
        return tokens <= max(self._slots)

    def run(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """The vector of one text, float32 [1, k].

        Raises:
            WhitenError: onnxruntime fails.
        """
        length = next(length for length in self._slots if length >= len(ids))
        feed = pad_batch([ids], self._pad_token_id, length)
        try:
            return self._thread.submit(self._run, self._slots[length], feed).result()
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise WhitenError(f"onnxruntime failed: {' '.join(str(error).split())}") from error

    def _run(self, slot: "_Slot", feed: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        for name, array in feed.items():
            slot.inputs[name].update_inplace(array)
        self._session.run_with_iobinding(slot.binding, slot.options)
        vectors: NDArray[np.float32] = slot.output.numpy()
        return vectors.copy()


class _Slot(NamedTuple):
    """The arrays of one length, which stay where they are."""

    inputs: dict[str, Any]
    output: Any
    binding: Any
    options: Any


def graph_lengths(longest: int) -> tuple[int, ...]:
    """Those of `LENGTHS` that a text may have, and the longest if it is shorter than the last of them."""
    return tuple(sorted({min(length, longest) for length in LENGTHS}))


def with_cuda_graph(options: SessionOptions) -> SessionOptions:
    """As these, for a session that is recorded."""
    first, *others = options.providers
    if provider_name(first) != CUDA_PROVIDER:
        return options
    return replace(options, providers=((CUDA_PROVIDER, {**provider_options(first), _OPTION: 1}), *others))


def enables_cuda_graph(provider: Provider) -> bool:
    """Whether a provider was given the option to record every run, of whatever shape."""
    return str(provider_options(provider).get(_OPTION, 0)).lower() in ("1", "true")


def device_of(provider: Provider) -> tuple[str, int]:
    """What onnxruntime calls the device of a provider, and its number."""
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
