"""Turn token ids into vectors: plan batches, pad them, run them, and return their vectors."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.bundle.records import Precision
from whiten_runtime.errors import BundleError, NoVectorError, RunError, UsageError
from whiten_runtime.inference.batching import Schedule, pad_batch
from whiten_runtime.inference.cpu import CpuRunner
from whiten_runtime.inference.gpu import GpuRunner, check_padding, enables_cuda_graph, is_out_of_memory
from whiten_runtime.inference.runner import Feed, GraphFile, RunBatch, Runner
from whiten_runtime.ort.providers import NVIDIA, provider_name
from whiten_runtime.ort.session import SessionOptions, placement_of

Advance = Callable[[int], object]
"""Function that is called with the number of texts that were computed since its last call."""


def no_progress(count: int) -> None:
    """Do nothing, for a caller that draws no bar."""


_Part = tuple[NDArray[np.intp], NDArray[np.float32]]
"""Indices of texts, and their vectors."""


class Engine:
    """Computes the vectors of tokenised texts. Thread-safe."""

    def __init__(
        self,
        model: Path,
        pad_token_id: int,
        options: SessionOptions | None = None,
        lookup: bool = False,
    ) -> None:
        settings = options or SessionOptions()
        if any(map(enables_cuda_graph, settings.providers)):
            raise UsageError(
                "enable_cuda_graph would replay the first text for every other; pass cuda_graphs=True instead"
            )
        graph = GraphFile(model, settings)
        on_gpu = provider_name(settings.providers[0]) in NVIDIA
        self._runner: Runner = (
            GpuRunner(graph, settings, pad_token_id) if on_gpu else CpuRunner(graph, settings, lookup)
        )
        self._model, self._pad_token_id = model, pad_token_id
        self.schedule = self._runner.schedule
        session = self._runner.session()
        self._widths = graph.output_widths(session)
        self.providers: list[str] = session.get_providers()
        self.placement = placement_of(session)

    def gives(self, output: str) -> bool:
        """Return whether the graph has this output."""
        return output in self._widths

    def width_of(self, *outputs: str) -> int:
        """Return the total number of coordinates of these outputs.

        Raises:
            BundleError: the graph lacks one of them.
        """
        if missing := [output for output in outputs if not self.gives(output)]:
            raise BundleError(
                f"{self._model}: has no output {missing[0]}, float32 [batch_size, k]; export the model again"
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
            vectors = np.array(self.compute(self.run_batch, ids, prompt_tokens, outputs))
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
        groups, workers = self.schedule.plan([len(row) for row in ids], batch_size)
        run = self.run_batch if workers < 2 else self.concurrent()
        failures: dict[int, str] = {}

        def compute(group: NDArray[np.intp]) -> list[_Part]:
            return self._parts(run, ids, group, prompt_tokens, outputs, failures)

        if workers < 2:
            yield from chain.from_iterable(map(compute, groups))
        else:
            with ThreadPoolExecutor(workers, "whiten-run") as executor:
                try:
                    results = executor.map(compute, groups)
                except RuntimeError:  # no more threads: the interpreter is ending, or the system's limit is reached
                    results = map(compute, groups)
                yield from chain.from_iterable(results)
        if failures:
            raise NoVectorError(failures)

    def _parts(
        self,
        run: RunBatch,
        ids: Sequence[Sequence[int]],
        group: NDArray[np.intp],
        prompt_tokens: int,
        outputs: Sequence[str],
        failures: dict[int, str],
    ) -> list[_Part]:
        """Run a batch, or its halves if it fails; add the reasons of texts that fail in a batch of their own."""
        try:
            return [(group, self.compute(run, [ids[index] for index in group], prompt_tokens, outputs))]
        except NoVectorError as error:
            failures[int(group[0])] = error.failures[0]
            return []
        except RunError:
            if len(group) == 1:
                raise
            self._check_runs(run, outputs)
        halves = np.array_split(group, 2)
        return [part for half in halves for part in self._parts(run, ids, half, prompt_tokens, outputs, failures)]

    def compute(
        self,
        run: RunBatch,
        ids: Sequence[Sequence[int]],
        prompt_tokens: int = 0,
        outputs: Sequence[str] = (OUTPUT,),
    ) -> NDArray[np.float32]:
        """Return the vectors of one batch, which a function runs, in the order of `ids`.

        Raises:
            NoVectorError: onnxruntime fails on the only text.
            RunError: it fails on several texts, or on a text of one token too.
        """
        try:
            return run(self.feed(ids, prompt_tokens), outputs)
        except RunError as error:
            if len(ids) > 1 or is_out_of_memory(error):
                raise
            self._check_runs(run, outputs)
            raise NoVectorError({0: f"has no vector ({error})"}) from None

    def _check_runs(self, run: RunBatch, outputs: Sequence[str]) -> None:
        """Raise RunError if a run fails on a text of one token too: then no text is at fault."""
        run(self.feed([[self._pad_token_id]]), outputs)

    def run_batch(self, feed: Feed, outputs: Sequence[str] = (OUTPUT,)) -> NDArray[np.float32]:
        """Run one padded batch, and return float32 [batch_size, k]. Safe to call from several threads at once."""
        return self._runner.run(feed, outputs)

    def concurrent(self) -> RunBatch:
        """Return a function that runs one of several batches at a time, each called in its own thread."""
        return self._runner.concurrent()

    def trim(self) -> None:
        """Give memory back that runs so far took, where the runner can: a CPU's."""
        if isinstance(self._runner, CpuRunner):
            self._runner.trim(self.feed([[self._pad_token_id]]))

    def feed(self, ids: Sequence[Sequence[int]], prompt_tokens: int = 0) -> Feed:
        """Pad the token ids of one batch."""
        return pad_batch(ids, self._pad_token_id, prompt_tokens=prompt_tokens)

    def check_padding(self, longest: int, precision: Precision) -> None:
        """Check that a padded text gets the same vector as the text alone; see `gpu.check_padding`."""
        check_padding(self.run_batch, self._pad_token_id, longest, OUTPUT, self.providers[0], precision)

    @property
    def can_record(self) -> bool:
        """Return whether this device has CUDA graphs, and the graph is small enough to be held twice."""
        return isinstance(self._runner, GpuRunner) and self._runner.can_record

    def record(self, longest: int, precision: Precision) -> None:
        """Record CUDA graphs for single texts of up to `longest` tokens, and use them from now on."""
        if not isinstance(self._runner, GpuRunner):
            raise UsageError(f"CUDA graphs cannot be recorded on {self.providers[0]}; leave cuda_graphs out")
        self._runner.record(longest, self._widths[OUTPUT], precision)

    def check_open(self) -> None:
        """Raise WhitenError if `close` was called."""
        self._runner.check_open()

    def close(self) -> None:
        """Free the model."""
        self._runner.close()


@dataclass(frozen=True)
class TokenizedTexts:
    """Token ids of texts, cut to the length that the bundle takes."""

    ids: list[list[int]]  # token ids of each text, special tokens and prompt included
    prompt_tokens: int = 0  # number of tokens at the beginning of each text that are left out of the pooling
    truncated: int = 0  # number of texts that were cut


class TokenRunner:
    """Runs batches of token ids on sessions that stay open. Safe to call from several threads, and in forked children.

    The session of batches that run side by side is created now: a bundle that is replaced later changes no vector.
    """

    def __init__(self, engine: Engine) -> None:
        engine.check_open()
        self._engine = engine
        self._process, self._run_concurrent = os.getpid(), engine.concurrent()
        self._run_concurrent(engine.feed([[0]]), (OUTPUT,))

    @property
    def schedule(self) -> Schedule:
        """Return how the encoder itself would run batches."""
        return self._engine.schedule

    def run(self, ids: Sequence[Sequence[int]], prompt_tokens: int = 0, *, alone: bool = False) -> NDArray[np.float32]:
        """Return the vectors of one batch, float32 [n, k], in the order of `ids`.

        Raises:
            NoVectorError: onnxruntime fails on the only text.
            RunError: it fails on several texts, or on a text of one token too.
        """
        if self._process != os.getpid():  # a lock that a thread of the parent held would stay locked
            self._process, self._run_concurrent = os.getpid(), self._engine.concurrent()
        run = self._engine.run_batch if alone else self._run_concurrent
        return self._engine.compute(run, ids, prompt_tokens)

    def trim(self) -> None:
        """Give memory back that batches so far took and no batch uses now; the next ones take again what they need.

        Call it after a proof or a very long text. It runs a text of one token.
        """
        self._engine.trim()
