"""Define the result of a sweep over layers: the content of `sweep.json`."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from whiten_runtime.bundle.manifest import Pooling

Whitened = Literal["none", "target", "corpus"]
"""Whitening of a score: none, one fitted on each task's own sentences, or one fitted on a corpus for all tasks."""

SEARCHED: tuple[Whitened, ...] = ("none", "target")
"""Whitenings for which combinations are searched; "corpus" is scored for single layers, pairs and the best ones."""

Varied = Literal["shrinkage", "beta"]

NEAR = 0.5
"""Largest deficit to the best, in Spearman's correlation times 100, at which a shallower network counts as as good."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the scores of a combination of layers: Spearman's correlation, times 100."""

    pooling: Pooling
    whitening: Whitened
    layers: tuple[int, ...]
    tasks: tuple[float | None, ...]
    """Scores in the order of the sweep's tasks; None where all texts have the same vector or, if whitened, where a task
    has too few texts."""
    average: float | None
    """Average over the tasks; None if a task has no score."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the averages of a combination that is whitened to fewer and fewer dimensions."""

    pooling: Pooling
    layers: tuple[int, ...]
    what: str
    dimensions: tuple[int, ...]
    averages: tuple[float, ...]


class FitCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the averages of a combination against the shrinkage or the exponent β of its whitening (pca)."""

    pooling: Pooling
    layers: tuple[int, ...]
    what: str
    """Reason why this combination has a curve."""
    whitening: Whitened
    """Set of sentences that the whitening is fitted on: "target" or "corpus"."""
    varied: Varied
    values: tuple[float, ...]
    """Weights of the shrinkage, with β = 1; or exponents β, without shrinkage."""
    averages: tuple[float | None, ...]
    """Average at each value; None where a task has too few sentences for it."""


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the speed and the best combination of a network that is cut above a layer."""

    layer: int
    texts_per_second: float | None
    """Median of the measurements; None if not measured."""
    spread: tuple[float, float] | None
    """Lowest and highest of the measurements, in texts per second; None if not measured."""
    best: Score | None
    """Best score of the combinations of layers up to `layer`, with the first pooling, whitened or not."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the whole result of a sweep."""

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
    task_sentences: tuple[int, ...]
    """Number of sentences of each task, repeated ones included: those that a whitening on target is fitted on."""
    corpus: str | None
    """Name of the corpus of the whitening "corpus"; None if there is none."""
    corpus_sentences: int
    searched: tuple[int, ...]
    """Layers whose combinations of three and more were searched."""
    exhaustive: bool
    """Whether all combinations of `searched` were scored, or only extensions of the best smaller ones."""
    scores: tuple[Score, ...]
    curves: tuple[Curve, ...]
    fits: tuple[FitCurve, ...]
    depths: tuple[Depth, ...]
    seconds: dict[str, float]

    @property
    def kinds(self) -> tuple[Whitened, ...]:
        """Return the whitenings that were scored."""
        return (*SEARCHED, "corpus") if self.corpus else SEARCHED

    @property
    def average_of(self) -> str:
        """Return the tasks that averages are taken over, in words."""
        return "the seven tasks" if len(self.tasks) == 7 else f"{len(self.tasks)} of the seven tasks"

    def of(self, pooling: Pooling, whitening: Whitened, size: int | None = None) -> Iterator[Score]:
        """Yield the scores that have an average, of combinations of one size or, for None, of all sizes."""
        for score in self.scores:
            wanted = (score.pooling, score.whitening) == (pooling, whitening) and size in (None, len(score.layers))
            if wanted and score.average is not None:
                yield score

    def best(self, pooling: Pooling, whitening: Whitened, size: int | None = None) -> Score | None:
        """Return the best of these scores, or None; of equal ones, that of fewer, then of lower layers."""
        return max(
            sorted(self.of(pooling, whitening, size), key=lambda score: (len(score.layers), score.layers)),
            key=average,
            default=None,
        )

    def sizes(self) -> range:
        """Return the sizes of combinations, from 1 to the largest."""
        return range(1, max((len(score.layers) for score in self.scores), default=0) + 1)


def average(score: Score) -> float:
    """Return the average of a score, or -inf if it has none."""
    return float("-inf") if score.average is None else score.average


def worthwhile(depths: tuple[Depth, ...]) -> tuple[Depth, Score] | None:
    """Return the shallowest network that scores within `NEAR` of the best one, and its best score."""
    known = [(depth, depth.best) for depth in depths if depth.best is not None]
    most = max((average(best) for _, best in known), default=0.0)
    return next(((depth, best) for depth, best in known if average(best) >= most - NEAR), None)


def layers_text(layers: tuple[int, ...]) -> str:
    """Return layers as text, in the syntax of --layers."""
    return ",".join(map(str, layers))


def named_layers(layers: tuple[int, ...]) -> str:
    """Return layers in words: "layer 6", "layers 1,6"."""
    return f"layer{'s' if len(layers) > 1 else ''} {layers_text(layers)}"


def layers_label(layers: tuple[int, ...]) -> str:
    """Return layers as a short label, in which three or more neighbours are a range: "0,2-5"."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else layers_text(tuple(run)) for run in runs)
