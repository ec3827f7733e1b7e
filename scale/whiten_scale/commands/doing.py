"""Do the items of a job that are left, with progress, in processes of this machine or on Ray."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

from whiten_runtime.checks import needing
from whiten_runtime.ort.processor import default_threads
from whiten_scale.commands.progress import progress
from whiten_scale.tasks import Work
from whiten_scale.workers import check_workers, run_items, share_of


def check_able(shard: str | None) -> None:
    """Check, before anything is read, that the packages are installed and that a share K/N is one.

    Raises:
        MissingPackageError: fsspec or pyarrow is not installed.
        UsageError: the share is none.
    """
    with needing("scale"):
        import fsspec  # noqa: F401
        import pyarrow  # noqa: F401
    share_of([], shard)


def do_items(what: str, work: Work, todo: Sequence[int], workers: int | None, ray: str | None) -> None:
    """Do items of a job.

    Args:
        what: what is done to records, for the progress: "embedded" or "fitted".
        work: the work.
        todo: numbers of the items.
        workers: number of processes, or of tasks of Ray; None for one for each CPU.
        ray: address of a cluster; None for this machine.

    Raises:
        WhitenError: an item failed.
    """
    if not todo:
        return
    total = sum(map(work.records, todo))
    if ray is None:
        count = check_workers(workers, len(todo), default_threads())
        with progress(what, total, f"{count} workers") as advance:
            run_items(work, todo, count, advance)
        return
    with needing("ray"):
        from whiten_scale.ray_cluster import run_on_ray
    with progress(what, total, "Ray") as advance, redirect_stdout(sys.stderr):  # Ray tells of lost nodes on stdout
        run_on_ray(work, todo, ray, workers, advance)
