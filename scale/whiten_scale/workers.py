"""Do the items of a job in processes of this machine, each with one thread; those that are killed are replaced."""

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from whiten_runtime.errors import UsageError, WhitenError
from whiten_scale.tasks import Work
from whiten_scale.worker import Told

ATTEMPTS = 3
"""Processes that may be killed in the middle of one item."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment of a process that computes with one thread."""

_COMMAND = (sys.executable, "-P", "-m", "whiten_scale.worker")
_GRACE = 10.0
"""Seconds that a worker has to remove its unfinished file."""

Advance = Callable[[int], object]


class _KilledError(Exception):
    """Raised when a worker ended in the middle of an item."""


def run_items(work: Work, items: Iterable[int], workers: int, advance: Advance = lambda count: None) -> None:
    """Do items of a job in this many processes.

    Args:
        work: the work.
        items: numbers of the items.
        workers: number of processes.
        advance: function that receives the number of records done since its last call; a negative one when a process
            was killed, and its item begins anew. It is called from several threads.

    Raises:
        WhitenError: an item failed, or processes were killed again and again.
    """
    todo = deque(items)
    pool = _Pool(work, todo, advance)
    lanes = [threading.Thread(target=pool.lane, name=f"whiten-lane-{one}") for one in range(min(workers, len(todo)))]
    try:
        for lane in lanes:
            lane.start()
        for lane in lanes:
            while lane.is_alive():
                lane.join(0.2)  # so that signals arrive
    finally:
        pool.stop()
        for lane in lanes:
            if lane.ident is not None:
                lane.join()
    if pool.error is not None:
        raise pool.error


class _Pool:
    """Holds the items that are left, and the processes that do them."""

    def __init__(self, work: Work, todo: deque[int], advance: Advance) -> None:
        self.error: WhitenError | None = None
        self._work, self._todo, self._advance = work, todo, advance
        self._content = msgspec.json.encode(work) + b"\n"
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def lane(self) -> None:
        """Do items with one process, or one after another where they are killed, until none is left."""
        process: subprocess.Popen[bytes] | None = None
        try:
            while (item := self._next()) is not None:
                for attempt in range(1, ATTEMPTS + 1):
                    try:
                        process = process or self._start()
                        self._do(process, item)
                        break
                    except (_KilledError, BrokenPipeError) as error:
                        assert process is not None
                        code, process = self._end(process), None
                        if attempt == ATTEMPTS and not self._stopped:
                            raise _killed(item, code) from error
                        if self._stopped:
                            return
        except WhitenError as error:
            self._fail(error)
        except Exception as error:  # a thread has nobody who would see it
            self._fail(WhitenError(f"a worker could not be run ({type(error).__name__}: {error})"))
        finally:
            if process is not None:
                self._end(process)

    def stop(self) -> None:
        """End all processes now."""
        with self._lock:
            self._stopped = True
            self._todo.clear()
            processes = list(self._processes)
        for process in processes:
            process.terminate()

    def _next(self) -> int | None:
        with self._lock:
            return self._todo.popleft() if self._todo and not self._stopped else None

    def _start(self, attempt: int = 1) -> "subprocess.Popen[bytes]":
        """Start a process, and wait until it has opened the bundle; start another where a signal ends it before."""
        environment = {**os.environ, **ONE_THREAD}
        pipe = subprocess.PIPE
        with self._lock:
            if self._stopped:
                raise WhitenError("stopped")
            process = subprocess.Popen(_COMMAND, stdin=pipe, stdout=pipe, env=environment)
            self._processes.add(process)
        try:
            _send(process, self._content)
            told = _told(process)
            if told.kind == "failed":
                raise _failed(told)
        except BaseException as error:
            code = self._end(process)
            if isinstance(error, _KilledError | BrokenPipeError):
                if code < 0 and attempt < ATTEMPTS:
                    return self._start(attempt + 1)
                raise WhitenError(
                    f"a worker ended with {_shown(code)} before it began; see its message above"
                ) from error
            raise
        return process

    def _do(self, process: "subprocess.Popen[bytes]", item: int) -> None:
        done = 0
        try:
            _send(process, b"%d\n" % item)
            while (told := _told(process)).kind == "advance":
                done += told.count
                self._advance(told.count)
        except (_KilledError, BrokenPipeError):
            self._advance(-done)
            raise
        if told.kind == "failed":
            raise _failed(told)

    def _end(self, process: "subprocess.Popen[bytes]") -> int:
        """Close a process's stdin, wait for its end, and return its exit code."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            code = process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        process.stdout.close()
        with self._lock:
            self._processes.discard(process)
        return code

    def _fail(self, error: WhitenError) -> None:
        """Keep the first error, and end all processes."""
        with self._lock:
            if self._stopped:
                return
            self.error = error
        self.stop()


def _send(process: "subprocess.Popen[bytes]", content: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(content)
    process.stdin.flush()


def _told(process: "subprocess.Popen[bytes]") -> Told:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.endswith(b"\n"):
        raise _KilledError
    return msgspec.json.decode(line, type=Told)


def _failed(told: Told) -> WhitenError:
    return UsageError(told.message) if told.code == UsageError.exit_code else WhitenError(told.message)


def _killed(item: int, code: int) -> WhitenError:
    return WhitenError(
        f"{ATTEMPTS} workers ended with {_shown(code)} in item {item}; they may need more memory than there is, so use "
        "fewer --workers"
    )


def _shown(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def check_workers(workers: int | None, items: int, available: int) -> int:
    """Return the number of processes: that asked for, else one for each usable CPU, and no more than items."""
    return max(1, min(workers or available, items))


def share_of(items: Sequence[int], shard: str | None) -> list[int]:
    """Return the items of one machine of several: `K/N` is every Nth one, from the Kth on.

    Raises:
        UsageError: not such a pair.
    """
    if shard is None:
        return list(items)
    first, _, count = shard.partition("/")
    if not (
        first.isascii() and first.isdigit() and count.isascii() and count.isdigit() and 1 <= int(first) <= int(count)
    ):
        raise UsageError(f"--shard is '{shard}'; wanted K/N, with K from 1 to N")
    return list(items[int(first) - 1 :: int(count)])
