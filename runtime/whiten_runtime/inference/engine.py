"""Turn token ids into vectors on CPUs: plan batches, pad them, and run them in sessions, one for each process."""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Event, local
from typing import Any, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.bundle import EXTERNAL_DATA_FILE, check_unchanged
from whiten_runtime.bundle.files import CheckedFile
from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.bundle.manifest import SHORT, Precision, TextMemory
from whiten_runtime.errors import BundleError, ClosedError, NoVectorError, Reason, RunError, UsageError, one_line
from whiten_runtime.inference.batching import ALONE_TOKENS, Schedule, pad_batch
from whiten_runtime.ort.process import (
    FairSemaphore,
    ForkSafeLock,
    after_fork_in_child,
    lock_against_forks,
    map_in_threads,
    native_call,
)
from whiten_runtime.ort.processor import default_threads, usable_memory
from whiten_runtime.ort.session import SessionOptions, create_session, placement_of


class Interruption:
    """Ends runs that nobody waits for: those that a thread begins in a `with` block of this, when another one asks."""

    def __init__(self) -> None:
        self.requested = False
        self._options: Any = None

    def __enter__(self) -> Self:
        _current.interruption = self
        return self

    def __exit__(self, *raised: object) -> None:
        _current.interruption = None

    def request(self) -> None:
        """End the run that goes on between two of its operators, and those that begin later."""
        self.requested = True
        if self._options is not None:
            self._options.terminate = True

    def watch(self, options: Any) -> None:
        self._options = options
        if self.requested:
            options.terminate = True


_current = local()


def _run_options(shrink: bool = False) -> Any:
    """Return options of a run, which its thread's interruption may end; `shrink` gives memory back after the run."""
    interruption = getattr(_current, "interruption", None)
    if interruption is None and not shrink:
        return None
    from onnxruntime import RunOptions  # imported with the session, with its telemetry off

    options = RunOptions()
    if shrink:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    if interruption is not None:
        interruption.watch(options)
    return options


class ForkSafeSession:
    """Creates a session when it is first used in a process: a forked child has none of its parent's threads."""

    def __init__(self, create: Callable[[], Any]) -> None:
        self._create = create
        self._closed = False
        self._session: Any = None
        _live.add(self)

    def run(
        self, outputs: Sequence[str], feed: Mapping[str, NDArray[Any]], shrink: bool = False
    ) -> list[NDArray[np.float32]]:
        """Run the graph; safe to call from several threads at once. `shrink` gives memory back after the run."""
        session = self.get()
        with native_call:
            try:
                results: list[NDArray[np.float32]] = session.run(list(outputs), dict(feed), _run_options(shrink))
            except Exception as error:  # onnxruntime's exceptions share no base class
                raise _failed(str(error)) from error
        return results

    def run_in_pool(self, outputs: Sequence[str], feed: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Run the graph like `run`, on one of the session's own threads: none of its other threads is woken for it."""
        session, options = self.get(), _run_options()  # which must live as long as the run
        ended, answer = Event(), []

        def end(results: list[NDArray[np.float32]], feed: object, error: str) -> None:
            answer.append((results, error))
            ended.set()

        with native_call:
            try:
                session.run_async(list(outputs), dict(feed), end, feed, options)
            except Exception as error:  # onnxruntime's exceptions share no base class
                raise _failed(str(error)) from error
            try:
                ended.wait()
            except BaseException:  # Ctrl-C: the run goes on, with the session and the feed
                ended.wait()
                raise
        results, reason = answer[0]
        if reason:
            raise _failed(reason)
        return results

    def get(self) -> Any:
        """Return the session of this process, created if necessary."""
        session = self._session
        if session is None:
            with _creation_lock, native_call:
                self.check_open()
                session = self._session
                if session is None:
                    session = self._session = self._create()
                    if self._closed:  # meanwhile
                        self._session = None
                        self.check_open()
        return session

    @property
    def alive(self) -> bool:
        return self._session is not None

    def check_open(self) -> None:
        """Raise ClosedError if `close` was called."""
        if self._closed:
            raise ClosedError("this encoder was closed; create a new one")

    def release(self) -> None:
        self._session = None

    def close(self) -> None:
        """Free the session; `run` raises from now on. It does not wait for sessions that others create."""
        self._closed = True
        self._session = None

    def abandon(self) -> None:
        """Drop the session without freeing it: its destructor would wait for threads that only the parent has."""
        if self._session is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._session))
            self._session = None


def _failed(reason: str) -> RunError:
    return RunError(f"onnxruntime failed: {one_line(reason)}")


_live: WeakSet[ForkSafeSession] = WeakSet()
_creation_lock = lock_against_forks()  # creating sessions is not thread-safe in onnxruntime


def _abandon_sessions() -> None:
    for session in _live:
        session.abandon()


after_fork_in_child(_abandon_sessions)


class GraphFile:
    """Represents an ONNX file, with the file of its weights if it has one.

    Args:
        path: the file.
        options: options of its sessions.
        files: both files, as they were checked; None for what is there now.
    """

    def __init__(self, path: Path, options: SessionOptions, files: Sequence[CheckedFile] | None = None) -> None:
        self.path = path
        self._files = files or _files_now(path)
        self.bytes = sum(file.bytes for file in self._files)
        self._options = options

    @property
    def unchanged(self) -> bool:
        return all(file.is_unchanged() for file in self._files)

    def create_session(
        self,
        threads: int | None = None,
        options: SessionOptions | None = None,
        edit: Callable[[bytes], bytes] | None = None,
    ) -> Any:
        """Create a session of the graph, or of what `edit` makes of the content of its file.

        onnxruntime opens the files by their paths: they are compared after it too.
        """
        check_unchanged(self._files)
        try:
            if edit is None:
                return create_session(self.path, options or self._options, threads)
            folder = self.path.parent if len(self._files) > 1 else None
            return create_session(edit(self.path.read_bytes()), options or self._options, threads, folder)
        finally:
            check_unchanged(self._files)

    def output_widths(self, session: Any) -> dict[str, int]:
        inputs = {value.name: value.type for value in session.get_inputs()}
        if inputs != {"input_ids": "tensor(int64)", "attention_mask": "tensor(int64)"}:
            raise BundleError(
                f"{self.path}: takes {inputs}, not input_ids and attention_mask as int64; export the model again"
            )
        return {
            output.name: output.shape[1]
            for output in session.get_outputs()
            if output.type == "tensor(float)" and len(output.shape) == 2 and isinstance(output.shape[1], int)
        }


def _files_now(graph: Path) -> list[CheckedFile]:
    """Return the file of a graph, and that of its weights if it exists."""
    files = (graph, graph.with_name(Path(EXTERNAL_DATA_FILE).name))
    return [CheckedFile.now(file) for file in files if file.is_file()]


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


_USUAL_TOKENS = 16
"""Tokens of a single-text request such as a query: shorter ones use the same session, which is created first."""


def too_large(tokens: int, needed: int, budget: int) -> Reason:
    """Return why a text cannot be computed in the memory that it may take."""
    return Reason(
        f"has {tokens:,} tokens, which take about {needed / 1e9:.3g} GB, and texts may take {budget / 1e9:.3g} GB here "
        "(memory_limit)",
        "shorten it, or raise the limit: memory_limit of Encoder, memory-limit of whiten serve",
    )


running_texts = FairSemaphore()
"""Bytes of memory of the texts that this process computes, of all encoders."""


class CpuEngine(Engine):
    """Runs a graph on CPUs, on a wide and a narrow session.

    A single batch runs on the wide session, which has all threads, if it is large enough for threads to help. Batches
    of one call run side by side on the narrow session, each in one thread: no thread waits for another at every
    operator, and each finds in its processor's cache the values that it has just written. Each session has a copy of
    the weights and is created when it is first needed.

    With two threads, the wide session does both, unless the graph is so small that single texts have one thread: they
    would wait for the session's own thread. Of two batches, the caller's thread runs one, and the session's own the
    other. Neither waits: an operator is divided only among threads that have nothing to do, and the session's own
    thread never divides one.

    Providers other than NVIDIA's are run like a CPU, one batch at a time. A graph without a network has one session of
    one thread.

    Texts of more than `ALONE_TOKENS` tokens run one at a time on the wide session, and give their memory back. If
    `memory` says what a text takes, texts of more than `SHORT` tokens run while they fit `memory_limit` of the options.
    """

    def __init__(
        self,
        graph: GraphFile,
        options: SessionOptions,
        pad_token_id: int,
        lookup: bool = False,
        memory: TextMemory | None = None,
    ) -> None:
        threads, tuning = options.threads or default_threads(), options.tuning
        several = options.on_cpu and graph.bytes < tuning.largest_held_twice
        schedule = Schedule.of_lookup() if lookup else Schedule.on_cpu(threads, threads if several else 1)
        self.graph = graph
        self._on_cpu = options.on_cpu
        self._little_work = tuning.little_work
        self._wide = ForkSafeSession(lambda: graph.create_session(1 if lookup else None))
        self._shared = 1 < schedule.workers <= tuning.most_sharing and not self._little(_USUAL_TOKENS)
        self._callers_turn = ForkSafeLock()  # taken by the batch that runs in its caller's thread on a shared session
        apart = schedule.workers > 1 and not self._shared
        self._narrow = ForkSafeSession(lambda: graph.create_session(1)) if apart else self._wide
        self._wide_was_used = False
        self._memory = memory
        half = 0 if memory is None else usable_memory() // 2  # weights and others need some
        self._budget = options.memory_limit or half
        super().__init__(graph, self._session_for(_USUAL_TOKENS).get(), schedule, pad_token_id)

    def _run(self, feed: Feed, outputs: Sequence[str], side_by_side: bool) -> list[NDArray[np.float32]]:
        texts, tokens = feed["input_ids"].shape
        with self.room(tokens, texts):
            if tokens <= ALONE_TOKENS or self._memory is None:
                return self._run_now(feed, outputs, side_by_side)
            self._wide_was_used = True
            return self._usable(self._wide, self._narrow).run(outputs, feed, shrink=True)

    def room(self, tokens: int, texts: int) -> AbstractContextManager[object]:
        """Return a context in which the memory of a run is held; texts that run alone have all threads."""
        if tokens <= SHORT or self._memory is None:
            return nullcontext()
        needed = self._memory.of(tokens, texts)
        if needed > self._budget:
            raise NoVectorError({0: too_large(tokens, needed, self._budget)})
        return running_texts.hold(needed, self._budget, owner=self if tokens > ALONE_TOKENS else None)

    def _run_now(self, feed: Feed, outputs: Sequence[str], side_by_side: bool) -> list[NDArray[np.float32]]:
        if not side_by_side:
            session = self._session_for(feed["input_ids"].size)
            self._wide_was_used |= session is self._wide
            return session.run(outputs, feed)
        if not self._shared:
            return self._session_side_by_side().run(outputs, feed)
        if not self._callers_turn.acquire(blocking=False):
            return self._wide.run_in_pool(outputs, feed)
        try:
            return self._wide.run(outputs, feed)
        finally:
            self._callers_turn.release()

    def _session_side_by_side(self) -> ForkSafeSession:
        """Return the narrow session; free the wide one if no batch has used it yet."""
        wide = self._wide
        if self._narrow is not wide and wide.alive and not self._wide_was_used and self.graph.unchanged:
            wide.release()
        return self._usable(self._narrow, wide)

    def trim(self) -> None:
        """Give memory back that runs so far took. It runs a text of one token."""
        self.check_open()
        for session in {self._wide, self._narrow} if self._on_cpu else ():
            if session.alive:
                session.run([], self.feed([[self._pad_token_id]]), shrink=True)  # without names, all outputs

    def check_open(self) -> None:
        """Raise ClosedError if `close` was called."""
        self._wide.check_open()

    def close(self) -> None:
        self._wide.close()
        self._narrow.close()

    def _session_for(self, tokens: int) -> ForkSafeSession:
        sessions = self._narrow, self._wide
        return self._usable(*(sessions if self._little(tokens) else reversed(sessions)))

    def _little(self, tokens: int) -> bool:
        return self.graph.bytes * max(tokens, _USUAL_TOKENS) < self._little_work

    def _usable(self, wanted: ForkSafeSession, other: ForkSafeSession) -> ForkSafeSession:
        """Return `wanted`, or `other` if `wanted` would have to be created from a file that was replaced."""
        return other if other.alive and not wanted.alive and not self.graph.unchanged else wanted
