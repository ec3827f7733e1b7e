"""Serve a bundle with Ray Serve: replicas of `AsyncEncoder`, by handle and over HTTP."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from whiten_runtime import Encoder
from whiten_runtime.checks import needing
from whiten_serving import AsyncEncoder


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
            return await _encoder(path, threads).encode(texts, **arguments)

    routed = serve.ingress(lambda: _encoder(path, threads).asgi_app(**options))(Embeddings)
    deployed = serve.deployment(routed, name="whiten", num_replicas=replicas, ray_actor_options={"num_cpus": threads})
    return deployed.bind()


@lru_cache(maxsize=1)
def _encoder(bundle: str, threads: int) -> AsyncEncoder:
    """Open the bundle once in the process of a replica."""
    return AsyncEncoder(Encoder(bundle, threads=threads))
