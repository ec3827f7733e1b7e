"""Token ids through a graph: batches are planned, padded, run, and handed back as they finish."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.batching import DEFAULT_TOKEN_BUDGET, pad_batch, plan_batches
from whiten_runtime.errors import BundleError, IntegrityError
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

    Attributes:
        width: coordinates of a vector, k.

    Raises:
        BundleError: onnxruntime does not accept the model, or it has other inputs or outputs.
        ProviderError: a provider is not available or not active.
    """

    def __init__(
        self, model: Path, pad_token_id: int, options: SessionOptions | None = None, output: str = OUTPUT
    ) -> None:
        settings = options or SessionOptions()
        original = _identity(model)

        def create() -> Any:
            if _identity(model) != original:
                raise IntegrityError(
                    f"{model}: replaced since this process's parent opened it; restart the service to use the new one"
                )
            return create_session(model, settings)

        self._session = ForkSafeSession(create)
        self._pad_token_id = pad_token_id
        self._output = output
        self.width = _checked_width(self._session.get(), model, output)

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

    def check_open(self) -> None:
        """Raise WhitenError if `close` was called."""
        self._session.get()

    @property
    def providers(self) -> list[str]:
        """Execution providers that are active, in order of preference."""
        active: list[str] = self._session.get().get_providers()
        return active

    def close(self) -> None:
        """Free the model."""
        self._session.close()


def _identity(model: Path) -> tuple[int, ...] | None:
    """What changes when a file is replaced."""
    try:
        stat = model.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _checked_width(session: Any, model: Path, output: str) -> int:
    """Coordinates of the output's vectors; the graph must take token ids and a mask, and nothing else."""
    inputs = {value.name: value.type for value in session.get_inputs()}
    if inputs != {"input_ids": "tensor(int64)", "attention_mask": "tensor(int64)"}:
        raise BundleError(f"{model}: takes {inputs}, not input_ids and attention_mask as int64; export the model again")
    found = {value.name: value for value in session.get_outputs()}.get(output)
    if found is None or found.type != "tensor(float)" or len(found.shape) != 2 or not isinstance(found.shape[1], int):
        raise BundleError(f"{model}: has no output {output}, float32 [batch_size, k]; export the model again")
    return found.shape[1]
