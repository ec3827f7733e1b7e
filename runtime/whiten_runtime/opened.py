"""Share what `Encoder` and `VectorWhitener` have in common: the manifest, use in `with`, and copies by pickle."""

from types import TracebackType
from typing import Any, Self, TypeVar

from whiten_runtime.bundle.bundle import Bundle
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.space import space_of

Opened = TypeVar("Opened", bound="OpenedBundle")


class OpenedBundle:
    """Holds an open bundle. Subclasses open it in `_open` and keep the arguments, by which a copy is opened again."""

    _bundle: Bundle
    _arguments: tuple[Any, ...]

    def _open(self, *arguments: Any) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Free the graph. The object cannot be used afterwards."""
        raise NotImplementedError

    @property
    def manifest(self) -> Manifest:
        """Return the bundle's manifest."""
        return self._bundle.manifest

    @property
    def dimension(self) -> int:
        """Return the number of coordinates of a vector, k."""
        return self._bundle.manifest.dimension

    @property
    def space(self) -> str:
        """Return the id of the space of the vectors: bundles with the same one give vectors that can be compared."""
        return space_of(self._bundle.manifest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return reopen, (type(self), *self._arguments)


def reopen(kind: type[Opened], *arguments: Any) -> Opened:
    """Open a bundle with the arguments that an object of this kind keeps, as in the process that unpickles it."""
    opened = kind.__new__(kind)
    opened._open(*arguments)
    return opened
