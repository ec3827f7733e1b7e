"""Open in a process what embeds the shards of a job, or fits its ranges; it is described by data, for any engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from whiten_runtime.errors import UsageError
from whiten_scale.fitting import RangeFitter, ranges_of
from whiten_scale.job import Job, bundle_hash
from whiten_scale.places import Folder
from whiten_scale.shard import embed_shard
from whiten_scale.vectors import VectorChoice, Vectors

Advance = Callable[[int], object]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Describes what a process needs in order to do any item of a job.

    Attributes:
        job: the job.
        bundle: directory of the bundle.
        out: directory of the output: of shards, or of ranges.
        vectors: what is stored of each text; None for a fit.
        record_errors: leave wrong rows out, and describe them, instead of stopping.
    """

    job: Job
    bundle: str
    out: str
    vectors: VectorChoice | None = None
    record_errors: bool = False

    @property
    def items(self) -> int:
        """Return the number of items: shards, or ranges."""
        return len(self.job.plan.shards) if self.job.task == "embed" else len(ranges_of(self.job))

    def records(self, item: int) -> int:
        """Return the number of records of an item."""
        plan = self.job.plan
        return plan.records(item) if self.job.task == "embed" else sum(map(plan.records, ranges_of(self.job)[item]))


class Doer(Protocol):
    """Does items of a job with one thread."""

    def __call__(self, item: int, advance: Advance) -> None:
        """Do an item, unless its file is there.

        Args:
            item: number of the shard or range.
            advance: function that receives the number of records done since its last call.
        """


def opened(work: Work) -> Doer:
    """Open the bundle, and return what does items.

    Raises:
        WhitenError: the bundle cannot be opened, gives no such vectors, or was replaced.
    """
    bundle, job = Path(work.bundle), work.job
    if work.vectors is None:
        fitter = RangeFitter(bundle)
        _check_same(bundle, job)
        return lambda item, advance: fitter.fit(job, item, Path(work.out), advance)
    vectors, out = Vectors(bundle, work.vectors), Folder(work.out)
    _check_same(bundle, job)

    def embed(item: int, advance: Advance) -> None:
        embed_shard(vectors, job, item, out, work.record_errors, advance)

    return embed


def _check_same(bundle: Path, job: Job) -> None:
    """Check that a bundle that was opened is the one of the job.

    Raises:
        UsageError: it was replaced since the job began.
    """
    if bundle_hash(bundle) != job.bundle_sha256:
        raise UsageError(f"{bundle}: is not the bundle that the job began with; put that back, or name another --out")
