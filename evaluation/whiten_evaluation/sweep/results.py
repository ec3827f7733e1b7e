"""What a sweep over layers finds: the content of `sweep.json`."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from whiten_runtime.bundle.manifest import Pooling

Whitened = Literal["none", "target"]

NEAR = 0.5
"""Points of Spearman's correlation times 100 that a shallower network may lack to be as good as the best."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Of a combination of layers; Spearman's correlation times 100."""

    pooling: Pooling
    whitening: Whitened
    layers: tuple[int, ...]
    tasks: tuple[float | None, ...]
    """In the order of the sweep's tasks; None where all texts have the same vector, or, whitened, where there are too
    few of them."""
    average: float | None
    """Of the tasks."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A combination whitened to fewer dimensions."""

    pooling: Pooling
    layers: tuple[int, ...]
    what: str
    dimensions: tuple[int, ...]
    averages: tuple[float, ...]


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """A network cut above a layer."""

    layer: int
    texts_per_second: float | None
    """Median; None where it was not measured."""
    best: Score | None
    """Of all combinations of layers up to here, with the first pooling, whitened or not."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found."""

    model: str
    checkpoint: str | None
    weights_sha256: str
    layers: tuple[int, ...]
    poolings: tuple[Pooling, ...]
    width: int
    max_seq_length: int
    tasks: tuple[str, ...]
    absent: dict[str, tuple[str, ...]]
    sentences: int
    searched: tuple[int, ...]
    """Layers of which combinations of three and more were tried."""
    exhaustive: bool
    """Whether all of those were, or only extensions of the best smaller ones."""
    scores: tuple[Score, ...]
    curves: tuple[Curve, ...]
    depths: tuple[Depth, ...]
    seconds: dict[str, float]

    @property
    def average_of(self) -> str:
        """What averages are of, in words."""
        return "the seven tasks" if len(self.tasks) == 7 else f"{len(self.tasks)} of the seven tasks"

    def of(self, pooling: Pooling, whitening: Whitened, size: int | None = None) -> Iterator[Score]:
        """Scores that are there, of combinations of a size or of all."""
        for score in self.scores:
            wanted = (score.pooling, score.whitening) == (pooling, whitening) and size in (None, len(score.layers))
            if wanted and score.average is not None:
                yield score

    def best(self, pooling: Pooling, whitening: Whitened, size: int | None = None) -> Score | None:
        """The best of them; of equals, that of fewer and lower layers."""
        return max(
            sorted(self.of(pooling, whitening, size), key=lambda score: (len(score.layers), score.layers)),
            key=average,
            default=None,
        )

    def sizes(self) -> range:
        """Of combinations."""
        return range(1, max((len(score.layers) for score in self.scores), default=0) + 1)


def average(score: Score) -> float:
    """Of a score that is there."""
    return float("-inf") if score.average is None else score.average


def worthwhile(depths: tuple[Depth, ...]) -> tuple[Depth, Score] | None:
    """The shallowest network that is as good as the best, but for `NEAR`, and what is as good of it."""
    known = [(depth, depth.best) for depth in depths if depth.best is not None]
    most = max((average(best) for _, best in known), default=0.0)
    return next(((depth, best) for depth, best in known if average(best) >= most - NEAR), None)


def layers_text(layers: tuple[int, ...]) -> str:
    """As --layers takes them."""
    return ",".join(map(str, layers))
