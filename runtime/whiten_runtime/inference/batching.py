"""Plan batches: which texts share a batch, and the padded arrays of each. Pure functions over token lengths."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.ort.session import Tuning

TOKEN_BUDGET = 256
"""Maximum number of padded tokens of a batch with one thread: it keeps the thread busy and memory small."""

ALONE_TOKEN_BUDGET = 1024
"""Maximum number of padded tokens of a batch that several threads share."""

ALONE_TOKENS = 2048
"""Number of tokens beyond which a text on a CPU has all threads, and no other such text runs: it keeps them busy, and
several at once would take as many times its memory."""

LOOKUP_TOKEN_BUDGET = 512
"""Maximum number of padded tokens of a batch of a graph without a network: its values stay in the processor's cache.
1,000 sentences of layer 0 of MiniLM take 15 ms of one thread with 256 to 512 tokens, and 31 ms with 4,096."""

GPU_TOKEN_BUDGET = Tuning.gpu_token_budget
"""Maximum number of padded tokens of a batch on a GPU."""

GPU_PAIRS = 1 << 25
"""Maximum number of pairs of tokens of a batch on a GPU, its texts times the square of the longest: where no fused
kernel computes attention, the scores of a layer take 4 bytes times heads for each pair, two or three times over (1.6 GB
with 12 heads). With `GPU_TOKEN_BUDGET`, batches of texts of up to 2,048 tokens are not bounded by it."""

GPU_WORKERS = 2
"""Batches that run at once on a GPU: while one copies and pads, the other computes."""

WINDOW = 4096
"""Texts that are tokenised and sorted together (a window): bounds the memory that they and their tokens take."""

WINDOW_CHARACTERS = 16_000_000
"""Characters of a window, unless one text has more: about 4 million tokens, which take some 150 MB."""

GPU_FIRST_WINDOW = 512
"""Texts that are tokenised before a GPU starts: with more, it would wait longer."""

WORKER_TOKENS = 48
"""Tokens of a call from which one more worker pays: with fewer, all threads on one batch are faster."""

_TOLERATED_PADDING = 1.25
"""Padded tokens, relative to real tokens, up to which a small call is one batch."""


@dataclass(frozen=True)
class Schedule:
    workers: int  # maximum number of batches that run at once
    # maximum number of padded tokens of a batch with more than one text; a quarter more for a call that is one batch
    budget: int
    # divide a small call among the workers, each with one thread; False on a GPU, which is faster with the whole call
    # at once
    split: bool = True
    first_window: int = WINDOW  # number of texts that are tokenised before the first batch
    window: int = WINDOW  # number of texts that are tokenised and sorted together after that
    worker_tokens: int = WORKER_TOKENS  # number of tokens of a call per additional worker
    pairs: int | None = None  # maximum of the texts of a batch times the square of the longest; None for no limit
    alone: int | None = None  # number of tokens beyond which a text is computed alone, on all threads; None for none

    @classmethod
    def on_cpu(cls, threads: int, workers: int) -> "Schedule":
        return cls(workers, TOKEN_BUDGET if workers == threads else ALONE_TOKEN_BUDGET, alone=ALONE_TOKENS)

    @classmethod
    def of_lookup(cls) -> "Schedule":
        """Return a schedule of one small batch at a time, each shorter than it takes to hand it to another thread."""
        return cls(1, LOOKUP_TOKEN_BUDGET)

    @classmethod
    def on_gpu(cls, budget: int = GPU_TOKEN_BUDGET) -> "Schedule":
        """Return a schedule of large batches; while one computes, the next one waits."""
        return cls(GPU_WORKERS, budget, split=False, first_window=GPU_FIRST_WINDOW, pairs=GPU_PAIRS)

    def plan(self, lengths: Sequence[int], max_texts: int | None = None) -> tuple[list[NDArray[np.intp]], int]:
        """Return the batches of `plan_batches`, as arrays of indices, and the number of batches to run at once."""
        workers = workers_for(lengths, self.workers, self.worker_tokens) if self.split else 1
        groups = plan_batches(lengths, token_budget(lengths, workers, self.budget), max_texts, self.pairs)
        return groups, min(workers if self.split else self.workers, len(groups))


def workers_for(lengths: Sequence[int], workers: int, worker_tokens: int = WORKER_TOKENS) -> int:
    """Return the number of batches to run at once for texts of these lengths, at most `workers`."""
    return max(1, min(workers, sum(lengths) // worker_tokens))


def token_budget(lengths: Sequence[int], workers: int, most: int = TOKEN_BUDGET) -> int:
    """Return the maximum number of padded tokens per batch.

    A small call is one batch. A larger one is divided so that all workers are busy until the end.
    """
    total = sum(max(length, 1) for length in lengths)
    rounds = max(1, math.ceil(total / (workers * most)))
    if workers == rounds == 1:
        return max(1, math.floor(total * _TOLERATED_PADDING))
    return math.ceil(total / (workers * rounds))


def plan_batches(
    lengths: Sequence[int] | NDArray[np.intp],
    budget: int = TOKEN_BUDGET,
    max_texts: int | None = None,
    pairs: int | None = None,
) -> list[NDArray[np.intp]]:
    """Group texts of similar length, so that little padding is computed.

    Texts are taken longest first, and a group is closed when one more text would exceed `budget` padded tokens or
    `max_texts` texts. A text longer than the budget is a group on its own.
    """
    if len(lengths) == 1:
        return [np.zeros(1, np.intp)]
    tokens = np.maximum(np.asarray(lengths, dtype=np.intp), 1)
    order = np.argsort(-tokens, kind="stable").astype(np.intp)
    groups = []
    start = 0
    while start < len(order):
        longest = int(tokens[order[start]])
        rows = budget // longest if pairs is None else min(budget // longest, pairs // longest**2)
        rows = max(1, rows)
        if max_texts is not None:
            rows = min(rows, max_texts)
        groups.append(order[start : start + rows])
        start += rows
    return groups


def pad_batch(
    ids: Sequence[Sequence[int]], pad_token_id: int, least: int = 1, prompt_tokens: int = 0
) -> dict[str, NDArray[np.int64]]:
    """Right-pad token ids into the two inputs of the graph."""
    if len(ids) == 1 and len(ids[0]) >= least and not prompt_tokens:  # single-text requests should not wait
        alone = np.asarray(ids, np.int64)
        return {"input_ids": alone, "attention_mask": np.ones_like(alone)}
    lengths = np.fromiter(map(len, ids), np.intp, len(ids))
    width = max(int(lengths.max(initial=0)), least)
    mask = np.arange(width) < lengths[:, None]
    input_ids = np.full((len(ids), width), pad_token_id, dtype=np.int64)
    input_ids[mask] = np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum()))
    attention_mask = mask.astype(np.int64)
    attention_mask[:, :prompt_tokens] *= 2
    return {"input_ids": input_ids, "attention_mask": attention_mask}
