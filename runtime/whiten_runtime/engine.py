"""Token ids through a graph: batches are planned, padded, run, and handed back as they finish."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.batching import DEFAULT_TOKEN_BUDGET, pad_batch, plan_batches
from whiten_runtime.session import ForkSafeSession, SessionOptions, create_session

OUTPUT = "sentence_embedding"
UNWHITENED_OUTPUT = "unwhitened_embedding"


class Engine:
    """One graph, one session.

    Args:
        model: an ONNX file that takes `input_ids` and `attention_mask`.
        pad_token_id: what pads `input_ids`.
        options: how the session is created.
        output: the value to compute, float32 [batch_size, k].

    Raises:
        BundleError: onnxruntime does not accept the model.
        ProviderError: a provider is not available or not active.
    """

    def __init__(
        self, model: Path, pad_token_id: int, options: SessionOptions | None = None, output: str = OUTPUT
    ) -> None:
        settings = options or SessionOptions()
        self._session = ForkSafeSession(lambda: create_session(model, settings))
        self._pad_token_id = pad_token_id
        self._output = output

    def run(
        self,
        ids: Sequence[Sequence[int]],
        batch_size: int | None = None,
        token_budget: int = DEFAULT_TOKEN_BUDGET,
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """Yield (indices into `ids`, their vectors [len(indices), k]) batch by batch, in no promised order."""
        for group in plan_batches([len(row) for row in ids], token_budget, batch_size):
            yield group, self.run_batch(pad_batch([ids[index] for index in group], self._pad_token_id))

    def run_batch(self, feed: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Run one padded batch; float32 [batch_size, k]. Safe to call from several threads at once."""
        return self._session.run([self._output], feed)[0]

    @property
    def providers(self) -> list[str]:
        """Execution providers that are active, in order of preference."""
        active: list[str] = self._session.get().get_providers()
        return active

    def close(self) -> None:
        """Free the model."""
        self._session.close()
