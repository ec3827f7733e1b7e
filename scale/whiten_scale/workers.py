"""Do the items of a job, shards or ranges, in processes of this machine, each with one thread."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.files.texts import import_parquet
from whiten_runtime.ort.process import unwind_on_sigterm
from whiten_runtime.ort.providers import silence_log
from whiten_scale.fitting import RangeFitter, ranges_of
from whiten_scale.places import Folder
from whiten_scale.plan import Job, bundle_hash
from whiten_scale.shard import VectorChoice, Vectors, embed_shard

ATTEMPTS = 4
"""Pools that are made, one after another, where processes are killed."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment of a process that computes with one thread."""

_SECONDS = 0.2
"""Seconds between two looks at what the processes have done."""

Advance = Callable[[int], object]
Do = Callable[[int, Advance], None]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Describes what a process needs in order to do any item of a job."""

    job: Job
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


def open_work(work: Work) -> Do:
    """Open the bundle, and return the function that does an item unless its file is there."""
    bundle, job = Path(work.bundle), work.job
    fitter = RangeFitter(bundle) if work.vectors is None else None
    vectors = None if work.vectors is None else Vectors(bundle, work.vectors)
    if bundle_hash(bundle) != job.bundle_sha256:
        raise UsageError(f"{bundle}: is not the bundle that the job began with; put that back, or name another --out")

    def do(item: int, advance: Advance) -> None:
        if fitter is not None:
            fitter.fit(job, item, Path(work.out), advance)
        elif vectors is not None:
            embed_shard(vectors, job, item, Folder(work.out), work.record_errors, advance)

    return do


@lru_cache(maxsize=1)
def open_once(content: bytes) -> tuple[Work, Do]:
    """Open work that was encoded, once in each process."""
    work = msgspec.json.decode(content, type=Work)
    return work, open_work(work)


def run_items(work: Work, items: Iterable[int], workers: int, advance: Advance = lambda count: None) -> None:
    """Do items of a job in this many processes.

    Where a process is killed, all begin anew, up to three times, with the items that are left. `advance` receives the
    number of records done since its last call; a negative one where items begin anew.
    """
    left, content = list(items), msgspec.json.encode(work)
    for _ in range(ATTEMPTS):
        left = _run_pool(work, left, content, workers, advance)
        if not left:
            return
    raise WhitenError(
        f"workers were killed {ATTEMPTS} times, the last time in items {', '.join(map(str, left[:workers]))}; they may "
        "need more memory than there is, so use fewer --workers. What is done is kept: run the command again"
    )


def _run_pool(work: Work, items: list[int], content: bytes, workers: int, advance: Advance) -> list[int]:
    """Do items in a pool, and return those that are left when a process was killed."""
    context = multiprocessing.get_context("spawn")
    counter, others = context.Value("q"), set(multiprocessing.active_children())
    shown, done = 0, set[int]()
    futures, running = dict[Future[None], int](), set[Future[None]]()
    with _one_thread():
        pool = ProcessPoolExecutor(min(workers, len(items)), context, _begin, (content, counter))
        try:
            left = iter(items)
            while True:
                # No more than the processes: a pool would begin another item after one that failed.
                new = {pool.submit(_do, item): item for item in islice(left, workers - len(running))}
                futures |= new
                running |= new.keys()
                if not running:
                    break
                ended, running = wait(running, _SECONDS, "FIRST_COMPLETED")
                for future in ended:
                    future.result()
                    done.add(futures[future])
                count = counter.get_obj().value
                advance(count - shown)
                shown = count
            pool.shutdown()
        except BrokenProcessPool:
            done |= {item for future, item in futures.items() if future.done() and not future.exception()}
            advance(sum(map(work.records, done)) - shown)
            return [item for item in items if item not in done]
        finally:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            pool.shutdown(cancel_futures=True)
    return []


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


_state: Any = None
"""What a process of a pool was given: encoded work, and the counter of records."""


def _begin(content: bytes, counter: Any) -> None:
    """Prepare a process of a pool."""
    global _state
    _state = content, counter
    os.dup2(2, 1)  # stdout is for results of the command
    unwind_on_sigterm()
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


def _do(item: int) -> None:
    content, counter = _state

    def advance(count: int) -> None:
        with counter.get_lock():
            counter.value += count

    try:
        open_once(content)[1](item, advance)
    except WhitenError:
        raise
    except SystemExit:  # of SIGTERM; the pool would go on with the next item
        os._exit(128 + signal.SIGTERM)
    except MemoryError:
        raise WhitenError("a worker is out of memory; use fewer --workers, or fewer texts a shard") from None
    except Exception as error:
        raise WhitenError(f"a worker failed with an unexpected {type(error).__name__}: {error}") from None


def check_workers(workers: int | None, items: int, available: int) -> int:
    """Return the number of processes: that asked for, else one for each usable CPU, and no more than items."""
    return max(1, min(workers or available, items))


def share_of(items: Sequence[int], share: str | None) -> list[int]:
    """Return the items of one machine of several: `K/N` is every Nth one, from the Kth on."""
    if share is None:
        return list(items)
    first, _, count = share.partition("/")
    digits = all(part.isascii() and part.isdigit() for part in (first, count))
    if not (digits and 1 <= int(first) <= int(count)):
        raise UsageError(f"--share is '{share}'; wanted K/N, with K from 1 to N")
    return list(items[int(first) - 1 :: int(count)])
