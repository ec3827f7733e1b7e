"""Do the items of a job on a cluster of Ray, which spreads them over its nodes and repeats those that were lost."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

from whiten_runtime.errors import WhitenError
from whiten_scale.tasks import Doer, Work, opened
from whiten_scale.workers import ATTEMPTS, ONE_THREAD


def run_on_ray(
    work: Work, todo: Sequence[int], address: str, workers: int | None, advance: Callable[[int], object]
) -> None:
    """Do items of a job on a cluster, each as a task of one CPU. All nodes need the same paths.

    Args:
        work: the work.
        todo: numbers of the items.
        address: address of the cluster, or "auto".
        workers: tasks at once; None for all CPUs but one, which is left to others, such as tasks that read.
        advance: function that receives the number of records done since its last call.

    Raises:
        WhitenError: an item failed, or the cluster cannot be reached.
    """
    import ray

    try:
        with ray.init(address, runtime_env={"env_vars": ONE_THREAD}, log_to_driver=False, logging_level="ERROR"):
            do, content = ray.remote(num_cpus=1, max_retries=ATTEMPTS)(_done), ray.put(msgspec.json.encode(work))
            items, running = iter(todo), set[Any]()
            while True:
                at_once = workers or max(1, int(ray.cluster_resources().get("CPU", 1)) - 1)
                running |= {do.remote(content, item) for item in islice(items, max(0, at_once - len(running)))}
                if not running:
                    return
                for task in ray.wait(list(running))[0]:
                    advance(ray.get(task))
                    running.remove(task)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        own, said = getattr(error, "cause", None), " ".join(str(error).split())[-500:]
        raise own if isinstance(own, WhitenError) else WhitenError(f"Ray failed: {said}") from error


def _done(content: bytes, item: int) -> int:
    """Do an item, and return the number of its records."""
    work, do = _opened(content)
    do(item, lambda count: None)
    return work.records(item)


@lru_cache(maxsize=1)
def _opened(content: bytes) -> tuple[Work, Doer]:
    """Open the bundle once in each process that Ray keeps."""
    work = msgspec.json.decode(content, type=Work)
    return work, opened(work)
