"""Run batches that the caller plans: token ids in, vectors out. A server that batches requests builds on it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.graph_names import OUTPUT
from whiten_runtime.inference.batching import Schedule
from whiten_runtime.inference.engine import Engine


@dataclass(frozen=True)
class TokenizedTexts:
    """Holds the token ids of texts, cut to the length that the bundle takes."""

    ids: list[list[int]]  # token ids of each text, special tokens and prompt included
    prompt_tokens: int = 0  # number of tokens at the beginning of each text that are left out of the pooling
    truncated: int = 0  # number of texts that were cut


class TokenRunner:
    """Runs batches of token ids on sessions that stay open. Safe to call from several threads, and in forked children.

    The session of batches that run side by side is created now: a bundle that is replaced later changes no vector.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._process, self._run_beside = os.getpid(), engine.beside()
        self._run_beside(engine.feed([[0]]), (OUTPUT,))

    @property
    def schedule(self) -> Schedule:
        """Return how the encoder itself would run batches."""
        return self._engine.schedule

    def run(self, ids: Sequence[Sequence[int]], prompt_tokens: int = 0, *, alone: bool = False) -> NDArray[np.float32]:
        """Return the vectors of one batch, float32 [n, k], in the order of `ids`."""
        if self._process != os.getpid():  # a lock that a thread of the parent held would stay locked
            self._process, self._run_beside = os.getpid(), self._engine.beside()
        feed = self._engine.feed(ids, prompt_tokens)
        return self._engine.run_batch(feed) if alone else self._run_beside(feed, (OUTPUT,))

    def trim(self) -> None:
        """Give memory back that batches so far took and no batch uses now; the next ones take again what they need.

        Call it after a proof or a very long text. It runs a text of one token.
        """
        self._engine.trim()
