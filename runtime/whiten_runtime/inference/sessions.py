"""Create sessions of a graph file, one for each process."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, local
from typing import Any, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.bundle import EXTERNAL_DATA_FILE, check_unchanged
from whiten_runtime.bundle.files import CheckedFile
from whiten_runtime.errors import BundleError, ClosedError, RunError, one_line
from whiten_runtime.ort.session import SessionOptions, create_session
from whiten_runtime.ort.threads import after_fork_in_child, lock_against_forks, native_call


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
