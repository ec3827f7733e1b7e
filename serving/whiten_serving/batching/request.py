"""Describe a request: the texts of one call on their way to vectors."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.inference.token_runner import TokenizedTexts, TokenRunner

Finish = Callable[[NDArray[np.float32]], NDArray[Any]]
"""Function that makes a caller's vectors of those of the graph: cut, normalised, quantised."""

Deliver = Callable[[Sequence["Request"]], None]
"""Function that gives callers the outcomes of requests that ended together, called in a lane."""


@dataclass(eq=False, slots=True)
class Request:
    """Holds the texts of one call, and the vectors that are computed of them so far. The lanes' lock guards it.

    Attributes:
        runner: what computes its batches.
        texts: its token ids.
        finish: function that is applied to all its vectors, float32 [n, k], when the last one is computed.
        deliver: function that is called once, when it has a result or an error.
        deadline: time of `time.monotonic` after which it is not computed; infinite for none.
        submitted: time of `time.monotonic` when it was queued.
        started: time when its first text was taken by a lane; 0 before.
        ended: time when its last text was computed; 0 before.
        tokens: number of tokens of its texts; an empty text counts as one.
        next: index of the first text that is not in a window of the queue yet.
        waiting: number of its tokens that wait in the queue.
        left: number of its texts that are not computed yet.
        gone: whether nobody waits for it any more: it has its outcome, or was cancelled.
        result: what its caller gets; None before it is computed, and if it failed.
        error: error that its caller gets in place of a result.
    """

    runner: TokenRunner
    texts: TokenizedTexts
    finish: Finish
    deliver: Deliver
    deadline: float = math.inf
    submitted: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    tokens: int = 0
    next: int = 0
    waiting: int = 0
    left: int = 0
    gone: bool = False
    result: NDArray[Any] | None = None
    error: Exception | None = None
    _vectors: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        self.tokens = self.waiting = sum([len(row) or 1 for row in self.texts.ids])
        self.left = len(self.texts.ids)

    @property
    def key(self) -> tuple[int, int]:
        """Return what texts of one batch have in common: the graph, and the length of the prompt."""
        return id(self.runner), self.texts.prompt_tokens

    def keep(self, indices: list[int], vectors: NDArray[np.float32]) -> bool:
        """Take the vectors of some of its texts, and return whether all are there."""
        if self._vectors is None:
            if len(indices) == len(self.texts.ids):
                self._vectors = vectors
            else:
                self._vectors = np.empty((len(self.texts.ids), vectors.shape[1]), np.float32)
        if self._vectors is not vectors:
            self._vectors[indices] = vectors
        self.left -= len(indices)
        return self.left == 0

    def complete(self) -> None:
        """Finish the vectors, or keep the error that finishing them raises. No lock is needed: nobody else has it."""
        assert self._vectors is not None
        self.ended = time.monotonic()
        try:
            self.result = self.finish(self._vectors)
        except Exception as error:
            self.error = error
