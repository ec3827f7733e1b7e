"""Run batches on CPUs: one batch on all threads, or several batches with one thread each."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.records import SHORT, TextMemory
from whiten_runtime.errors import NoVectorError, Reason
from whiten_runtime.inference.batching import ALONE_TOKENS, Schedule
from whiten_runtime.inference.engine import Engine, Feed
from whiten_runtime.inference.sessions import ForkSafeSession, GraphFile
from whiten_runtime.ort.processor import default_threads, usable_memory
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.ort.threads import FairSemaphore, ForkSafeLock

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
