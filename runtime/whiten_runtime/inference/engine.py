"""Turn token ids into vectors: plan batches, pad them, run them, and return their vectors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.bundle.records import Precision
from whiten_runtime.errors import BundleError, NoVectorError, RunError, UsageError
from whiten_runtime.inference.batching import Schedule, pad_batch
from whiten_runtime.inference.sessions import GraphFile
from whiten_runtime.ort.session import placement_of
from whiten_runtime.ort.threads import map_in_threads

Feed = dict[str, NDArray[np.int64]]
"""A padded batch, `input_ids` and `attention_mask`, each int64 [batch_size, sequence_length]."""

Advance = Callable[[int], object]
"""Function that is called with the number of texts that were computed since its last call."""


def no_progress(count: int) -> None:
    """Do nothing, for a caller that draws no bar."""


_Part = tuple[NDArray[np.intp], NDArray[np.float32]]
"""Indices of texts, and their vectors."""

OUT_OF_MEMORY = (
    *("Available memory of", "Failed to allocate memory", "out of memory", "CUDA failure 2:"),
    *("ALLOC_FAILED", "ALLOCATION_FAILED", "bad_alloc", "bad allocation", "too little memory"),
)
"""Words of messages of onnxruntime, and of `gpu`, when a run has too little memory."""


class Engine:
    """Computes the vectors of tokenised texts with one graph. Thread-safe. Subclasses run it on a device.

    Args:
        graph: file of the graph.
        session: one of its sessions, from which inputs and outputs are read.
        schedule: how the texts of a call become batches, and how many of them run at once.
        pad_token_id: token id of padding.
    """

    def __init__(self, graph: GraphFile, session: Any, schedule: Schedule, pad_token_id: int) -> None:
        self.schedule = schedule
        self.graph, self._pad_token_id = graph, pad_token_id
        self._widths = graph.output_widths(session)
        self.providers: list[str] = session.get_providers()
        self.placement = placement_of(session)

    def gives(self, output: str) -> bool:
        return output in self._widths

    def width_of(self, *outputs: str) -> int:
        """Return the total number of coordinates of these outputs.

        Raises:
            BundleError: the graph lacks one of them.
        """
        if missing := [output for output in outputs if not self.gives(output)]:
            raise BundleError(
                f"{self.graph.path}: has no output {missing[0]}, float32 [batch_size, k]; export the model again"
            )
        return sum(self._widths[output] for output in outputs)

    def run(
        self,
        ids: Sequence[Sequence[int]],
        prompt_tokens: int = 0,
        outputs: Sequence[str] = (OUTPUT,),
        batch_size: int | None = None,
        advance: Advance = no_progress,
    ) -> NDArray[np.float32]:
        """Return the vectors of texts in their order, float32 [n, k]; several outputs are concatenated.

        `advance` is called after each batch.

        Raises:
            NoVectorError: onnxruntime fails on some texts; all others were computed.
            RunError: it fails on a text of one token too.
            BundleError: the graph lacks an output.
        """
        width = self.width_of(*outputs)
        if len(ids) == 1:  # there is nothing to plan
            vectors = np.array(self.run_batch(ids, prompt_tokens, outputs))
            advance(1)
            return vectors
        vectors = np.empty((len(ids), width), np.float32)
        for group, rows in self._batches(ids, prompt_tokens, outputs, batch_size):
            vectors[group] = rows
            advance(len(group))
        return vectors

    def _batches(
        self, ids: Sequence[Sequence[int]], prompt_tokens: int, outputs: Sequence[str], batch_size: int | None
    ) -> Iterator[_Part]:
        """Yield (indices into `ids`, their vectors) batch by batch, in no guaranteed order."""
        lengths = [len(row) for row in ids]
        groups, workers = self.schedule.plan(lengths, batch_size)
        failures: dict[int, str] = {}
        most = self.schedule.alone
        while groups and most is not None and lengths[groups[0][0]] > most:  # the longest texts come first
            yield from self._parts(ids, groups.pop(0), prompt_tokens, outputs, False, failures)

        def compute(group: NDArray[np.intp]) -> list[_Part]:
            return self._parts(ids, group, prompt_tokens, outputs, workers > 1, failures)

        if workers < 2:
            yield from chain.from_iterable(map(compute, groups))
        else:
            yield from chain.from_iterable(map_in_threads(compute, groups, workers, "whiten-run"))
        if failures:
            raise NoVectorError(failures)

    def _parts(
        self,
        ids: Sequence[Sequence[int]],
        group: NDArray[np.intp],
        prompt_tokens: int,
        outputs: Sequence[str],
        side_by_side: bool,
        failures: dict[int, str],
    ) -> list[_Part]:
        """Run a batch, or its halves if it fails; add the reasons of texts that fail in a batch of their own."""
        try:
            return [(group, self.run_batch([ids[index] for index in group], prompt_tokens, outputs, side_by_side))]
        except NoVectorError as error:
            if len(group) == 1:
                failures[int(group[0])] = error.failures[0]
                return []
        except RunError:
            if len(group) == 1:
                raise
            self._check_runs(outputs, side_by_side)
        halves = np.array_split(group, 2)
        rest = (prompt_tokens, outputs, side_by_side, failures)
        return [part for half in halves for part in self._parts(ids, half, *rest)]

    def run_batch(
        self,
        ids: Sequence[Sequence[int]],
        prompt_tokens: int = 0,
        outputs: Sequence[str] = (OUTPUT,),
        side_by_side: bool = False,
    ) -> NDArray[np.float32]:
        """Return the vectors of one batch in the order of `ids`, float32 [n, k]. Safe to call from several threads.

        Args:
            ids: token ids of each text.
            prompt_tokens: number of tokens at the beginning of each text that are left out of the pooling.
            outputs: outputs of the graph, which are concatenated.
            side_by_side: whether other batches run at the same time, so that this one should take one thread.

        Raises:
            NoVectorError: onnxruntime fails on the only text, or the texts together take too much memory.
            RunError: it fails on several texts, or on a text of one token too.
        """
        try:
            return self.run_feed(self.feed(ids, prompt_tokens), outputs, side_by_side)
        except RunError as error:
            if len(ids) > 1 or is_out_of_memory(error):
                raise
            self._check_runs(outputs, side_by_side)
            raise NoVectorError({0: f"has no vector ({error})"}) from None

    def _check_runs(self, outputs: Sequence[str], side_by_side: bool) -> None:
        """Raise RunError if a run fails on a text of one token too: then no text is at fault."""
        self.run_feed(self.feed([[self._pad_token_id]]), outputs, side_by_side)

    def run_feed(
        self, feed: Feed, outputs: Sequence[str] = (OUTPUT,), side_by_side: bool = False
    ) -> NDArray[np.float32]:
        """Return the vectors of a padded batch, float32 [batch_size, k], as `run_batch`."""
        vectors, texts = self._run(feed, outputs, side_by_side), len(feed["input_ids"])
        for rows in vectors:
            if rows.ndim != 2 or len(rows) != texts:
                raise BundleError(
                    f"the graph gives an array of shape {list(rows.shape)} for {texts} texts; wanted a row for each: "
                    "copy the bundle again, or export the model again"
                )
        return vectors[0] if len(vectors) == 1 else np.concatenate(vectors, axis=1)

    def _run(self, feed: Feed, outputs: Sequence[str], side_by_side: bool) -> list[NDArray[np.float32]]:
        raise NotImplementedError

    def feed(self, ids: Sequence[Sequence[int]], prompt_tokens: int = 0) -> Feed:
        return pad_batch(ids, self._pad_token_id, prompt_tokens=prompt_tokens)

    def room(self, tokens: int, texts: int) -> AbstractContextManager[object]:
        """Return a context in which the memory of a run is held, for texts of so many tokens each.

        Raises:
            NoVectorError: the texts take more memory than texts may take.
        """
        return nullcontext()

    def create_sessions(self) -> None:
        """Create the session of batches that run side by side: a bundle that is replaced later changes no vector."""
        self.run_feed(self.feed([[0]]), side_by_side=True)

    def trim(self) -> None:
        """Give memory back that runs so far took, where the device can: a CPU. It runs a text of one token."""

    def record(self, longest: int, precision: Precision) -> None:
        """Record CUDA graphs for single texts of up to `longest` tokens, and use them from now on."""
        raise UsageError(f"CUDA graphs cannot be recorded on {self.providers[0]}; leave cuda_graphs out")

    @property
    def can_record(self) -> bool:
        """Return whether this device has CUDA graphs, and the graph is small enough to be held twice."""
        return False

    def check_open(self) -> None:
        """Raise ClosedError if `close` was called."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that a run had too little memory."""
    return any(words in str(error) for words in OUT_OF_MEMORY)


@dataclass(frozen=True)
class TokenizedTexts:
    ids: list[list[int]]  # token ids of each text, special tokens and prompt included
    prompt_tokens: int = 0  # number of tokens at the beginning of each text that are left out of the pooling
    truncated: int = 0  # number of texts that were cut, equal ones counted each
