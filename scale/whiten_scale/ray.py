"""Run a job, or serve a bundle, on a cluster of Ray, which spreads the work over its nodes."""

from collections.abc import Generator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from whiten_runtime.errors import WhitenError, needing
from whiten_runtime.opened.encoder import Encoder
from whiten_scale.workers import ATTEMPTS, ONE_THREAD, Work, open_once


def run_on_ray(work: Work, todo: Sequence[int], address: str, workers: int | None) -> Generator[int]:
    """Do items of a job on a cluster, each as a task of one CPU, and yield each that is done.

    All nodes need the same paths. Without `workers`, all CPUs but one have a task; that one is left to others, such as
    tasks that read.
    """
    with needing("ray"):
        import ray
    try:
        with ray.init(address, runtime_env={"env_vars": ONE_THREAD}, log_to_driver=False, logging_level="ERROR"):
            do, content = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_do), ray.put(msgspec.json.encode(work))
            items, running = iter(todo), dict[Any, int]()
            while True:
                at_once = workers or max(1, int(ray.cluster_resources().get("CPU", 1)) - 1)
                running |= {do.remote(content, item): item for item in islice(items, max(0, at_once - len(running)))}
                if not running:
                    return
                for task in ray.wait(list(running))[0]:
                    ray.get(task)
                    yield running.pop(task)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        own, said = getattr(error, "cause", None), " ".join(str(error).split())[-500:]
        raise own if isinstance(own, WhitenError) else WhitenError(f"Ray failed: {said}") from error


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
