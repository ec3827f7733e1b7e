"""Do the items of a job, shards or ranges, in processes of this machine, each with one thread."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

import msgspec

from whiten_runtime.bundle.manifest import bundle_hash
from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.files.rows import import_parquet
from whiten_runtime.ort.process import unwind_on_sigterm
from whiten_runtime.ort.session import silence_log
from whiten_scale.fitting import RangeFitter, ranges_of
from whiten_scale.places import Folder
from whiten_scale.plan import Job, versions
from whiten_scale.shard import VectorChoice, Vectors, embed_shard

ATTEMPTS = 4
"""Times that processes may be killed while nothing is done."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment of a process that computes with one thread."""

_GRACE = 10.0
"""Seconds in which a process removes its unfinished file."""

Do = Callable[[int], None]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what a process needs in order to do any item of a job."""

    job: Job
    versions: dict[str, str] = msgspec.field(default_factory=versions)  # where the command runs
    bundle: str  # its directory
    out: str  # directory of the output: of shards, or of ranges
    vectors: VectorChoice | None = None  # None for a fit
    record_errors: bool = False  # leave wrong rows out, and describe them, instead of stopping

    @property
    def items(self) -> int:
        """Return the number of items: shards, or ranges."""
        return len(self.job.shards) if self.vectors else len(ranges_of(self.job))

    def records(self, item: int) -> int:
        """Return the number of records of an item."""
        return self.job.records(item) if self.vectors else sum(map(self.job.records, ranges_of(self.job)[item]))


@lru_cache(maxsize=1)
def open_once(content: bytes) -> Do:
    """Open encoded work once in each process; return the function that does an item unless its file is there."""
    work = msgspec.json.decode(content, type=Work)
    bundle, job = Path(work.bundle), work.job
    do: Do
    if work.vectors is None:
        do = partial(RangeFitter(bundle).fit, job, folder=Path(work.out))
    else:
        vectors, out = Vectors(bundle, work.vectors), Folder(work.out)
        do = partial(embed_shard, vectors, job, out=out, record_errors=work.record_errors)
    if (here := versions()) != work.versions:
        raise UsageError(f"a node has other versions ({here}) than the command ({work.versions}); install the same")
    if bundle_hash(bundle) != job.bundle_sha256:
        raise UsageError(f"{bundle}: is not the bundle that the job began with; put that back, or name another --out")
    return do


def run_items(work: Work, items: Iterable[int], workers: int) -> Generator[int]:
    """Do items of a job in this many processes, and yield each that is done.

    Where a process is killed, all begin anew with the items that are left, until that happens four times in which no
    item is done.
    """
    left, content, losses = dict.fromkeys(items), msgspec.json.encode(work), 0
    while losses < ATTEMPTS:
        try:
            for item in _run_pool(list(left), content, workers):
                del left[item]
                losses = 0
                yield item
            return
        except BrokenProcessPool:
            losses += 1
    raise WhitenError(
        f"workers were killed {ATTEMPTS} times, the last time in items {', '.join(map(str, list(left)[:workers]))}; "
        "they may need more memory than there is, so use fewer --workers. What is done is kept: run the command again"
    )


def _run_pool(items: Sequence[int], content: bytes, workers: int) -> Generator[int]:
    """Do items in a pool of processes, and yield each that is done."""
    others, left = set(multiprocessing.active_children()), iter(items)
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (content,))
    running = dict[Future[None], int]()
    try:
        while True:
            with _one_thread():  # No more than the processes: a pool would begin another item after one that failed.
                running |= {pool.submit(_do, item): item for item in islice(left, workers - len(running))}
            if not running:
                break
            for future in wait(running, return_when="FIRST_COMPLETED").done:
                future.result()
                yield running.pop(future)
        pool.shutdown()
    finally:
        ending = set(multiprocessing.active_children()) - others
        for process in ending:
            process.terminate()
        for process in ending:
            process.join(_GRACE)
            process.kill()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Set `ONE_THREAD` for the processes that start in the block."""
    before = {name: os.environ[name] for name in ONE_THREAD if name in os.environ}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name in ONE_THREAD:
            os.environ.pop(name, None)
        os.environ.update(before)


_content = b""
"""Encoded work that a process of a pool was given."""


def _begin(content: bytes) -> None:
    """Prepare a process of a pool."""
    global _content
    _content = content
    os.dup2(2, 1)  # stdout is for results of the command
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that made the pool
    silence_log()
    import_parquet()[0].set_cpu_count(1)
    threading.Thread(target=_end_with_parent, name="whiten-parent", daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of the process that made the pool, and end this one, so that its unfinished file is removed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(1)


@contextmanager
def _unwinding() -> Iterator[None]:
    """Unwind on SIGTERM in the block, so that an unfinished file is removed.

    Outside it the process ends at once: the pool's own code, between two items, drops the exception.
    """
    unwind_on_sigterm()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _do(item: int) -> None:
    try:
        with _unwinding():
            open_once(_content)(item)
    except WhitenError:
        raise
    except SystemExit:  # of SIGTERM; the pool would go on with the next item
        os._exit(128 + signal.SIGTERM)
    except MemoryError:
        raise WhitenError("a worker is out of memory; use fewer --workers") from None
    except Exception as error:
        raise WhitenError(f"a worker failed with an unexpected {type(error).__name__}: {error}") from None
