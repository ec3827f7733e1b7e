"""Define the protocol between the engine, which plans batches, and the runners, which compute them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import BundleError
from whiten_runtime.inference.batching import Schedule
from whiten_runtime.ort.fork_safe import ForkSafeSession

Feed = dict[str, NDArray[np.int64]]
"""A padded batch, `input_ids` and `attention_mask`, each int64 [batch_size, sequence_length]."""

RunBatch = Callable[[Feed, Sequence[str]], NDArray[np.float32]]
"""Function that computes outputs of a batch: float32 [batch_size, k]; several outputs are concatenated."""


class Runner(Protocol):
    """Computes the vectors of padded batches with one graph."""

    schedule: Schedule  # how the texts of a call become batches, and how many of them run at once

    def session(self) -> Any:
        """Return an `onnxruntime.InferenceSession` of this process, from which inputs and outputs can be read."""

    def run(self, feed: Feed, values: Sequence[str]) -> NDArray[np.float32]:
        """Run a batch while no other batch of the call runs; safe to call from several threads."""

    def concurrent(self) -> RunBatch:
        """Return a function that runs one of several batches of a call, each in its own thread."""

    def check_open(self) -> None:
        """Raise WhitenError if `close` was called."""

    def close(self) -> None:
        """Free the model."""


def run_session(session: ForkSafeSession, feed: Feed, values: Sequence[str]) -> NDArray[np.float32]:
    """Run a session, and concatenate its outputs: float32 [batch_size, k]."""
    return _joined(session.run(values, feed), len(feed["input_ids"]))


def run_in_pool(session: ForkSafeSession, feed: Feed, values: Sequence[str]) -> NDArray[np.float32]:
    """Run a session like `run_session`, on one of its own threads."""
    return _joined(session.run_in_pool(values, feed), len(feed["input_ids"]))


def _joined(vectors: Sequence[NDArray[np.float32]], texts: int) -> NDArray[np.float32]:
    for rows in vectors:
        if rows.ndim != 2 or len(rows) != texts:
            raise BundleError(
                f"the graph gives an array of shape {list(rows.shape)} for {texts} texts; wanted a row for each: copy "
                "the bundle again, or export the model again"
            )
    return vectors[0] if len(vectors) == 1 else np.concatenate(vectors, axis=1)
