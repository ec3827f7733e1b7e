"""Run a job, or serve a bundle, on a cluster of Ray, which spreads the work over its nodes."""

from collections import Counter
from collections.abc import Generator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import WhitenError, needing, one_line
from whiten_scale.workers import ATTEMPTS, ONE_THREAD, Work, open_once

_WAITING = 2
"""Tasks that a cluster has for each of its CPUs: half of them wait."""


def run_on_ray(work: Work, todo: Sequence[int], address: str, workers: int | None) -> Generator[int]:
    """Do items of a job on a cluster, each as a task of one CPU, and yield each that is done.

    All nodes need the same paths. Without `workers`, as many tasks wait as there are CPUs, so that a cluster that can
    grow sees what is wanted. A task that is lost with its process or node begins anew, until one item was lost four
    times in which no other was done.
    """
    with needing("ray"):
        import ray
    try:
        cluster = ray.init(address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise WhitenError(
            f"no cluster of Ray was reached at '{address}' ({one_line(error)[:300]}); check the address, or start one "
            "with ray start --head"
        ) from error
    # A job's own variables stay as they are; those of a task go before them.
    options: dict[str, Any] = {"num_cpus": 1, "max_retries": 0, "runtime_env": {"env_vars": ONE_THREAD}}
    with cluster:
        try:
            yield from _run_tasks(ray, ray.remote(**options)(_do), work, todo, workers)
        except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
            raise _in_words(error) from error


def _run_tasks(ray: Any, do: Any, work: Work, todo: Sequence[int], workers: int | None) -> Generator[int]:
    exceptions = ray.exceptions
    lost = exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.OutOfMemoryError
    content = ray.put(msgspec.json.encode(work))
    left, running, losses = list(reversed(todo)), dict[Any, int](), Counter[int]()
    while left or running:
        at_once = workers or _WAITING * int(ray.cluster_resources().get("CPU", 1))
        while left and len(running) < max(1, at_once):
            item = left.pop()
            running[do.remote(content, item)] = item
        for task in ray.wait(list(running))[0]:
            item = running.pop(task)
            try:
                ray.get(task)
            except lost as error:
                losses[item] += 1
                if losses[item] == ATTEMPTS:
                    raise WhitenError(
                        f"item {item} was lost {ATTEMPTS} times with its process or node ({one_line(error)[:200]}); it "
                        "may need more memory than a node has for each CPU. What is done is kept: run the command again"
                    ) from error
                left.append(item)
            else:
                losses.clear()
                yield item


def _in_words(error: Exception) -> WhitenError:
    """Return what an error of Ray means: one of whiten in a task, something that the nodes lack, or what Ray says."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, WhitenError):
        return cause
    said = one_line(error)[-500:]
    if isinstance(cause, ImportError) or "ModuleNotFoundError" in said:
        return WhitenError(f"a node of the cluster lacks a package; install whiten[ray] on all of them ({said[-300:]})")
    return WhitenError(f"Ray failed: {said}; what is done is kept: run the command again")


def _do(content: bytes, item: int) -> None:
    open_once(content)(item)


def application(bundle: str | Path, *, threads: int = 1, replicas: int = 1, **options: Any) -> Any:
    """Return an application of Ray Serve, for `serve.run`.

    Over HTTP it has the routes of `AsyncEncoder.asgi_app`. A handle has `encode`: `await handle.encode.remote(texts)`.

    Args:
        bundle: the bundle, under the same path on every node.
        threads: threads of a replica, and the CPUs that Ray keeps for it.
        replicas: number of replicas.
        options: options of `AsyncEncoder.asgi_app`.

    Raises:
        MissingPackageError: Ray Serve is not installed.
    """
    with needing("ray"):
        from ray import serve
    path = str(Path(bundle).absolute())

    class Embeddings:
        async def encode(self, texts: str | list[str], **arguments: Any) -> NDArray[Any]:
            """Embed texts, with the arguments of `AsyncEncoder.encode`."""
            vectors: NDArray[Any] = await _encoder(path, threads).encode(texts, **arguments)
            return vectors

    routed = serve.ingress(lambda: _encoder(path, threads).asgi_app(**options))(Embeddings)
    deployed = serve.deployment(routed, name="whiten", num_replicas=replicas, ray_actor_options={"num_cpus": threads})
    return deployed.bind()


@lru_cache(maxsize=1)
def _encoder(bundle: str, threads: int) -> Any:
    """Open the bundle once in the process of a replica."""
    from whiten_serving import AsyncEncoder

    return AsyncEncoder(Encoder(bundle, threads=threads))
