"""Hold the models that are served, and replace them while requests run."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Protocol

from numpy.typing import NDArray

from whiten_runtime.bundle.manifest import Manifest, VectorPrecision
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError
from whiten_serving.batcher import Batcher
from whiten_serving.batching.counters import Stats
from whiten_serving.batching.request import Request


class Embeds(Protocol):
    """Describes what the application needs of an `AsyncEncoder`."""

    batcher: Batcher

    async def request(
        self,
        texts: str | list[str],
        *,
        dimensions: int | None = None,
        normalize: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
        precision: VectorPrecision = "float32",
        timeout: float | None = None,
    ) -> Request:
        """Tokenise texts, and return a request for `answer`."""

    async def answer(self, request: Request, timeout: float | None = None) -> NDArray[Any]:
        """Queue a request and wait for its vectors."""

    def stats(self) -> Stats:
        """Return what waits and runs now."""

    async def close(self, wait: bool = True) -> None:
        """Take no more requests, and compute what waits."""


class UnknownModelError(LookupError):
    """Raised when a request names a model that is not served."""


@dataclass(eq=False)
class ServedModel:
    """Holds one model that is served.

    Attributes:
        name: name by which requests ask for it.
        embeds: the `AsyncEncoder` of it.
        digest: SHA-256 of its manifest, which has the hashes of all files of the bundle.
        opened: time when it was opened.
        uses: number of requests that use it now.
        retired: whether another one took its place; it is closed when its last request has ended.
    """

    name: str
    embeds: Embeds
    digest: str = ""
    opened: datetime = field(default_factory=lambda: datetime.now(UTC))
    uses: int = 0
    retired: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError("a model has an empty name; name it, as in NAME=BUNDLE")
        self.digest = self.digest or sha256(self.manifest.to_json()).hexdigest()

    @property
    def encoder(self) -> Encoder:
        """Return the encoder itself."""
        return self.embeds.batcher.encoder

    @property
    def manifest(self) -> Manifest:
        """Return the bundle's manifest, as it was when the bundle was opened."""
        return self.encoder.manifest


class Models:
    """Holds the models that are served, by name, in order. Use it in the event loop's thread.

    Open all of them on the same lanes (`AsyncEncoder(bundle, shared=lanes)`), so that replacing one closes no lanes
    that others use.

    Args:
        served: the models.

    Raises:
        UsageError: there is none, or two have one name.
    """

    def __init__(self, served: Iterable[ServedModel]) -> None:
        self._served: dict[str, ServedModel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        for one in served:
            if one.name in self._served:
                raise UsageError(f"two models are named '{one.name}'; name them, as in NAME=BUNDLE")
            self._served[one.name] = one
        if not self._served:
            raise UsageError("there is no model to serve; give a bundle")

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._served.values()))

    def __len__(self) -> int:
        return len(self._served)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the models."""
        return tuple(self._served)

    def get(self, name: str | None) -> ServedModel:
        """Return the model of a name. Where a single one is served, it is returned for any name, and for none.

        Raises:
            UnknownModelError: several are served, and none has this name, or no name is given.
        """
        if len(self._served) == 1:
            return next(iter(self._served.values()))
        return self.named(name)

    def named(self, name: str | None) -> ServedModel:
        """Return the model of exactly this name, with or without Ollama's ":latest".

        Raises:
            UnknownModelError: there is none.
        """
        found = self._served.get(name or "") or self._served.get((name or "").removesuffix(":latest"))
        if found is None:
            asked = "the request names no model" if not name else f"there is no model {_shortened(name)}"
            raise UnknownModelError(f"{asked}; those served are {', '.join(self._served)}")
        return found

    @contextmanager
    def using(self, served: ServedModel) -> Iterator[ServedModel]:
        """Keep a model open during the block, even if it is replaced meanwhile."""
        served.uses += 1
        try:
            yield served
        finally:
            served.uses -= 1
            if served.retired and not served.uses:
                self._close(served)

    def replace(self, served: ServedModel) -> None:
        """Put a model in the place of that of its name: later requests get the new one, running ones keep the old one.

        The old one is closed when its last request has ended.

        Args:
            served: the new model; its name must be that of one that is served.

        Raises:
            UsageError: no model of this name is served.
        """
        old = self._served.get(served.name)
        if old is None:
            raise UsageError(f"model '{served.name}' is not served; those served are {', '.join(self._served)}")
        self._served[served.name] = served
        old.retired = True
        if not old.uses:
            self._close(old)

    def _close(self, served: ServedModel) -> None:
        task = asyncio.get_running_loop().create_task(served.embeds.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self, wait: bool = True) -> None:
        """Close all models, those that were replaced too.

        Args:
            wait: compute what waits; False fails it.
        """
        await asyncio.gather(*self._closing, *(one.embeds.close(wait) for one in self))


def _shortened(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")
