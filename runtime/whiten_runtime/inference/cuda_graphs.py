"""Run single-text requests on a GPU as CUDA graphs: kernels are recorded once and launched together.

A network of a hundred kernels is launched one by one, which takes longer than one short text keeps the GPU busy. A CUDA
graph is one launch, but its arrays have fixed shapes and addresses. Texts are therefore padded to one of a few lengths,
and each length has its own arrays and its own recording. onnxruntime keeps recordings by thread, so one thread makes
and replays all of them, whichever thread asks.
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

        self._session = self._thread.submit(record).result()
        for length in reversed(self._slots):  # the longest needs most memory, which the others use too
            try:
                self.run([pad_token_id] * length)
                self.run([pad_token_id] * length)  # from the second run on it is replayed
            except WhitenError as error:
                raise ProviderError(f"texts of {length} tokens cannot be recorded as a CUDA graph: {error}") from error

    def takes(self, tokens: int) -> bool:
        """Return whether a CUDA graph was recorded for a text with this number of tokens."""
        return tokens <= max(self._slots)

    def run(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the vector of one text, float32 [1, k]."""
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
    """Holds the arrays of one length, whose addresses are fixed."""

    inputs: dict[str, Any]
    output: Any
    binding: Any
    options: Any


def graph_lengths(longest: int) -> tuple[int, ...]:
    """Return those of `LENGTHS` that a text may have, and `longest` if it is shorter than the last of them."""
    return tuple(sorted({min(length, longest) for length in LENGTHS}))


def with_cuda_graph(options: SessionOptions) -> SessionOptions:
    """Return the options of a session that records CUDA graphs."""
    first, *others = options.providers
    if provider_name(first) != CUDA_PROVIDER:
        return options
    return replace(options, providers=((CUDA_PROVIDER, {**provider_options(first), _OPTION: 1}), *others))


def enables_cuda_graph(provider: Provider) -> bool:
    """Return whether a provider has the option that records every run, whatever its shape."""
    return str(provider_options(provider).get(_OPTION, 0)).lower() in ("1", "true")


def device_of(provider: Provider) -> tuple[str, int]:
    """Return onnxruntime's name for the device of a provider, and its number."""
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
