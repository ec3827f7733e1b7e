"""The result of a sweep: the scores of combinations of layers."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from whiten_evaluation.sts import Interval
from whiten_evaluation.sweep.scoring import Combination
from whiten_runtime.bundle.manifest import Pooling

Whitened = Literal["none", "task", "corpus"]
"""Whitening of a score: none, in full on each task's own sentences, or softly, as an export's, on a corpus for all."""


class SearchScore(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of a combination of layers in search: nDCG@10, times 100."""

    whitened: bool
    """Whether the vectors are whitened softly on the built-in corpus, as an export does."""
    layers: Combination
    collections: tuple[float, ...]
    """Scores in the order of the sweep's collections."""
    average: float


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of a combination of layers: Spearman's correlation, times 100."""

    whitening: Whitened
    layers: Combination
    tasks: tuple[float | None, ...]
    """Scores in the order of the sweep's tasks; None where all texts have the same vector, or are too few to whiten."""
    average: float | None
    """Average over the tasks; None if a task has no score."""


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The best combination up to a highest layer, with 95 % intervals of a bootstrap over the pairs."""

    score: Score
    interval: Interval
    difference: Interval
    """Interval of the difference of the average to that of the best combination of all."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    checkpoint: str | None
    weights_sha256: str
    layers: tuple[int, ...]
    depth: int
    """Number of blocks of the whole model."""
    pooling: Pooling
    width: int
    max_seq_length: int
    tasks: tuple[str, ...]
    absent: dict[str, tuple[str, ...]]
    sentences: int
    corpus: str
    """Name of the corpus of the whitening "corpus"."""
    corpus_sentences: int
    exhaustive: bool
    """Whether all combinations were scored, or only extensions of the best smaller ones."""
    scores: tuple[Score, ...]
    best: tuple[Best, ...]
    """The best combination up to each highest layer, the best of all first."""
    collections: tuple[str, ...]
    """Names of the collections that were searched."""
    by_cosine: bool
    """Whether the search compared vectors by cosine, or else by dot product; see `score_search`."""
    searches: tuple[SearchScore, ...]
    """Scores of single layers, of pairs, and of the best of similarity, in search."""
    seconds: dict[str, float]

    def of(self, whitening: Whitened, size: int | None = None) -> Iterator[Score]:
        """Yield the scores that have an average, of combinations of one size or, for None, of all sizes."""
        for score in self.scores:
            if score.whitening == whitening and size in (None, len(score.layers)) and score.average is not None:
                yield score


def average(score: Score) -> float:
    """Return the average of a score, or -inf if it has none."""
    return float("-inf") if score.average is None else score.average


def text_of(layers: tuple[int, ...]) -> str:
    return ",".join(map(str, layers))


def in_words(layers: tuple[int, ...]) -> str:
    return f"Layer{'s' if len(layers) > 1 else ''} {text_of(layers)}"
