"""Run batches on CPUs: one batch on all threads, or several batches with one thread each."""

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.inference.batching import Schedule
from whiten_runtime.inference.runner import Feed, ForkSafeSession, GraphFile, RunBatch, run_in_pool, run_session
from whiten_runtime.ort.processor import default_threads
from whiten_runtime.ort.session import SessionOptions

_USUAL_TOKENS = 16
"""Tokens of a single-text request such as a query: shorter ones use the same session, which is created first."""


class CpuRunner:
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
    """

    def __init__(self, graph: GraphFile, options: SessionOptions, lookup: bool = False) -> None:
        threads, tuning = options.threads or default_threads(), options.tuning
        several = options.on_cpu and graph.bytes < tuning.largest_held_twice
        self.schedule = Schedule.of_lookup() if lookup else Schedule.on_cpu(threads, threads if several else 1)
        self._graph = graph
        self._on_cpu = options.on_cpu
        self._little_work = tuning.little_work
        self._wide = ForkSafeSession(lambda: graph.create_session(1 if lookup else None))
        self._shared = 1 < self.schedule.workers <= tuning.most_sharing and not self._little(_USUAL_TOKENS)
        apart = self.schedule.workers > 1 and not self._shared
        self._narrow = ForkSafeSession(lambda: graph.create_session(1)) if apart else self._wide
        self._wide_was_used = False

    def session(self) -> Any:
        """Return the session of single-text requests."""
        return self._session_for(_USUAL_TOKENS).get()

    def run(self, feed: Feed, values: Sequence[str]) -> NDArray[np.float32]:
        """Run a batch while no other batch of the call runs; safe to call from several threads."""
        session = self._session_for(feed["input_ids"].size)
        self._wide_was_used |= session is self._wide
        return run_session(session, feed, values)

    def concurrent(self) -> RunBatch:
        """Return a function that runs a batch in one thread; free the wide session if no batch has used it yet."""
        if self._shared:
            return _side_by_side(self._wide)
        if self._narrow is not self._wide and self._wide.alive and not self._wide_was_used and self._graph.unchanged:
            self._wide.release()
        session = self._usable(self._narrow, self._wide)
        return lambda feed, values: run_session(session, feed, values)

    def trim(self, feed: Feed) -> None:
        """Give memory back that runs so far took."""
        self.check_open()
        for session in {self._wide, self._narrow} if self._on_cpu else ():
            if session.alive:
                session.trim(feed)

    def check_open(self) -> None:
        """Raise WhitenError if `close` was called."""
        self._wide.check_open()

    def close(self) -> None:
        """Free the model."""
        self._wide.close()
        self._narrow.close()

    def _session_for(self, tokens: int) -> ForkSafeSession:
        """Return the session for a batch that runs alone."""
        sessions = self._narrow, self._wide
        return self._usable(*(sessions if self._little(tokens) else reversed(sessions)))

    def _little(self, tokens: int) -> bool:
        """Return whether a batch of so many tokens is faster with one thread."""
        return self._graph.bytes * max(tokens, _USUAL_TOKENS) < self._little_work

    def _usable(self, wanted: ForkSafeSession, other: ForkSafeSession) -> ForkSafeSession:
        """Return `wanted`, or `other` if `wanted` would have to be created from a file that was replaced."""
        return other if other.alive and not wanted.alive and not self._graph.unchanged else wanted


def _side_by_side(session: ForkSafeSession) -> RunBatch:
    """Return a function that runs a batch in the caller's thread, or in the session's own while the former is busy."""
    free = Lock()

    def run(feed: Feed, values: Sequence[str]) -> NDArray[np.float32]:
        if not free.acquire(blocking=False):
            return run_in_pool(session, feed, values)
        try:
            return run_session(session, feed, values)
        finally:
            free.release()

    return run
