"""Do the items of a job on a cluster of Ray: Ray spreads them over its nodes, and repeats those that were lost."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from whiten_runtime.errors import WhitenError
from whiten_scale.tasks import Doer, Work, opened
from whiten_scale.workers import ONE_THREAD

_BLOCKS = 4096
"""Tasks into which the items are divided, at most; what a task has finished is skipped when it is repeated."""


def run_on_ray(
    work: Work, todo: Sequence[int], address: str, workers: int | None, advance: Callable[[int], object]
) -> None:
    """Do items of a job on a cluster.

    Args:
        work: the work; the nodes need the bundle, the input and the output under the same paths.
        todo: numbers of the items.
        address: address of the cluster, or "auto".
        workers: tasks at once; None for all CPUs but one, which is left to Ray.
        advance: function that receives the number of records done since its last call.

    Raises:
        WhitenError: an item failed, or the cluster cannot be reached.
    """
    import ray

    try:
        ray.init(address, ignore_reinit_error=True, log_to_driver=False, runtime_env={"env_vars": ONE_THREAD})
        at_once = workers or max(1, int(ray.cluster_resources().get("CPU", 1)) - 1)
        content = msgspec.json.encode(work)
        items = [{"item": item} for item in todo]
        rows = ray.data.from_items(items, override_num_blocks=min(len(items), _BLOCKS))
        for row in rows.map(lambda row: _done(content, row["item"]), num_cpus=1, concurrency=at_once).iter_rows():
            advance(row["records"])
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        raise _own(error) or WhitenError(f"Ray failed: {' '.join(str(error).split())[:500]}") from error


def _own(error: BaseException | None) -> WhitenError | None:
    """Return our own error among the causes of an error of Ray."""
    while error is not None and not isinstance(error, WhitenError):
        error = getattr(error, "cause", None) or error.__cause__
    return error


def _done(content: bytes, item: int) -> dict[str, int]:
    work = msgspec.json.decode(content, type=Work)
    _opened(content)(item, lambda count: None)
    return {"records": work.records(item)}


@lru_cache(maxsize=1)
def _opened(content: bytes) -> Doer:
    """Open the bundle once in each process that Ray keeps for tasks."""
    return opened(msgspec.json.decode(content, type=Work))
