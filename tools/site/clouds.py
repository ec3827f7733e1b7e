"""Draw what a whitening does to real vectors: layer 1 of all-MiniLM-L6-v2, on sentences of the built-in corpus."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from drawing import Drawing, Kind, Point
from numpy.typing import NDArray

from whiten import Encoder, Recipe, Whitening, export_bundle
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus

Array = NDArray[np.float64]

WIDTH = 760
SENTENCES, DRAWN = 4_000, 350
"""Number of sentences that the whitenings are fitted on, and number of those that are drawn."""

PAIR = ("A man is playing a guitar.", "The stock market fell.")
"""Two sentences that have nothing in common."""

MINUS = "\N{MINUS SIGN}"

_BINS = 60
_PANEL = 222


@dataclass(frozen=True)
class Clouds:
    """Holds the same vectors before a whitening, after a soft one and after a full one.

    Attributes:
        names: a title of each, and a second line.
        vectors: the vectors of the corpus in each, float64 [n, d].
        pairs: the vectors of `PAIR` in each, float64 [2, d].
    """

    names: tuple[tuple[str, str], ...]
    vectors: tuple[Array, ...]
    pairs: tuple[Array, ...]


def measure() -> Clouds:
    """Export layer 1 without a whitening, embed sentences, and whiten the vectors by the project's own estimator."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = export_bundle(Recipe.of("minilm", layers=(1,), whitening=None), Path(folder) / "layer-1").path
        with Encoder(bundle) as encoder:
            sentences = list(Corpus((BUILTIN_CORPUS,), None, SENTENCES))
            vectors, pair = (encoder.encode(texts).astype(np.float64) for texts in (sentences, list(PAIR)))
    soft, full = Whitening(method="zca", shrinkage=0.5).fit(vectors), Whitening(method="zca").fit(vectors)
    return Clouds(
        names=(
            ("as the layer gives them", ""),
            ("soft whitening", "shrinkage 0.5, the default"),
            ("full whitening", ""),
        ),
        vectors=(vectors, *(np.asarray(one.transform(vectors), np.float64) for one in (soft, full))),
        pairs=(pair, *(np.asarray(one.transform(pair), np.float64) for one in (soft, full))),
    )


def cloud(clouds: Clouds) -> str:
    """Return the vectors seen in one plane: that of their mean and of the direction in which they differ most."""
    draw = Drawing(WIDTH, 356, "Vectors of 350 sentences before and after a whitening, and two of other sentences")
    plane = _plane(clouds.vectors[0])
    step = SENTENCES // DRAWN
    kinds: tuple[Kind, ...] = ("bad", "good", "own")
    for index, (vectors, pair, (name, more)) in enumerate(zip(clouds.vectors, clouds.pairs, clouds.names, strict=True)):
        flat, two = vectors[::step][:DRAWN] @ plane, pair @ plane
        reach = 1.08 * np.abs(np.concatenate([flat, two])).max()
        left, middle = 22 + 247 * index, 190.0
        centre = np.array([left + _PANEL / 2, middle])
        scale = np.array([1, -1]) * (_PANEL / 2 / reach)
        draw.text((left + _PANEL / 2, 34), name, "title", anchor="middle")
        draw.text((left + _PANEL / 2, 54), more, "small", "faint", anchor="middle")
        draw.line(((left, middle), (left + _PANEL, middle)))
        draw.line(((centre[0], middle - _PANEL / 2), (centre[0], middle + _PANEL / 2)))
        draw.dots(_points(centre + flat * scale), kinds[index])
        for point in _points(centre + two * scale):
            draw.arrow((left + _PANEL / 2, middle), point, strong=True)
        draw.text((left + _PANEL / 2, 324), f"cosine of the two: {_signed(_cosine(pair), 2)}", anchor="middle")
        draw.text((left + _PANEL / 2, 342), "in all 384 dimensions", "small", "faint", anchor="middle")
    return draw.svg()


def _points(rows: Array) -> list[Point]:
    return [(float(x), float(y)) for x, y in rows]


def _plane(vectors: Array) -> Array:
    """Return two orthogonal directions, [d, 2]: of the largest variance beside the mean, and of the mean."""
    mean = vectors.mean(axis=0)
    up = mean / np.linalg.norm(mean)
    rest = vectors - np.outer(vectors @ up, up)
    across = np.linalg.eigh(np.cov(rest.T))[1][:, -1]
    across *= np.sign(across[np.abs(across).argmax()])
    return np.stack([across, up], axis=1)


def _signed(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}".replace("-", MINUS)


def _cosine(pair: Array) -> float:
    return float(pair[0] @ pair[1] / np.linalg.norm(pair[0]) / np.linalg.norm(pair[1]))


def cosines(clouds: Clouds) -> str:
    """Return how often each cosine occurs among pairs of sentences, before and after."""
    draw = Drawing(WIDTH, 330, "Cosines of pairs of sentences: about 0.6 before a whitening, about 0 after it")
    axes = _Axes(draw, (60, 30), (670, 240), (-0.4, 1.0), (0.0, 1.0))
    edges = np.linspace(-0.4, 1.0, _BINS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    kinds: tuple[Kind, ...] = ("bad", "good", "own")
    shares = [np.histogram(_pairwise(vectors[::8]), edges)[0].astype(np.float64) for vectors in clouds.vectors]
    highest = max(float(share.max() / share.sum()) for share in shares)
    for share, kind, (name, _) in zip(shares, kinds, clouds.names, strict=True):
        heights = share / share.sum() / highest
        axes.curve(middles, heights, kind)
        top = int(heights.argmax())
        at = axes.place(middles[top], heights[top])
        axes.label((at[0] + 22, at[1] + (2 if top > _BINS / 2 else 8)), name, kind)
    axes.ticks_below([-0.4, -0.2, 0, 0.2, 0.4, 0.6, 0.8, 1.0], "cosine of two sentences (500 sentences, all pairs)")
    return draw.svg()


def _pairwise(vectors: Array) -> Array:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return (unit @ unit.T)[np.triu_indices(len(unit), 1)]


def spectrum(clouds: Clouds) -> str:
    """Return how strong each direction is, before and after, the strongest first."""
    draw = Drawing(WIDTH, 340, "Standard deviations along the axes of the covariance, before and after a whitening")
    deviations = [np.sqrt(np.linalg.eigvalsh(np.cov(vectors.T))[::-1].clip(0)) for vectors in clouds.vectors]
    relative = [np.log10(np.maximum(one / np.sqrt(np.mean(one**2)), 10**-2.0)) for one in deviations]
    axes = _Axes(draw, (80, 30), (650, 250), (1, len(relative[0])), (-2.0, 1.0))
    kinds: tuple[Kind, ...] = ("bad", "good", "own")
    spots = ((16, 0.5), (300, -0.2), (210, 0.08))
    for values, kind, (name, _), spot in zip(relative, kinds, clouds.names, spots, strict=True):
        axes.curve(np.arange(1, len(values) + 1), values, kind)
        axes.label(axes.place(*spot), name, kind)
    axes.ticks_below(
        [1, 100, 200, 300, 384],
        "axes of the covariance, the widest first; upwards the standard deviation, over the root of its mean square",
    )
    for power in (-2, -1, 0, 1):
        axes.tick_left(power, f"{10.0**power:g}")
    return draw.svg()


class _Axes:
    """Places curves in a rectangle."""

    def __init__(
        self,
        draw: Drawing,
        corner: Point,
        size: Point,
        x: Sequence[float],
        y: Sequence[float],
    ) -> None:
        self._draw, self._corner, self._size, self._x, self._y = draw, corner, size, x, y
        left, bottom = corner[0], corner[1] + size[1]
        draw.line(((left, corner[1]), (left, bottom), (left + size[0], bottom)))

    def place(self, x: float, y: float) -> Point:
        across = (x - self._x[0]) / (self._x[1] - self._x[0])
        up = (y - self._y[0]) / (self._y[1] - self._y[0])
        return self._corner[0] + across * self._size[0], self._corner[1] + (1 - up) * self._size[1]

    def curve(self, x: NDArray[np.generic], y: Array, kind: Kind) -> None:
        self._draw.line([self.place(float(one), float(other)) for one, other in zip(x, y, strict=True)], kind)

    def label(self, at: Point, words: str, kind: Kind) -> None:
        self._draw.text(at, words, f"{kind}-text")

    def ticks_below(self, values: Sequence[float], words: str) -> None:
        bottom = self._corner[1] + self._size[1]
        for value in values:
            x, _ = self.place(value, self._y[0])
            self._draw.line(((x, bottom), (x, bottom + 5)))
            self._draw.text((x, bottom + 20), f"{value:g}".replace("-", MINUS), "small", "faint", anchor="middle")
        self._draw.text((self._corner[0] + self._size[0] / 2, bottom + 42), words, "small", "faint", anchor="middle")

    def tick_left(self, value: float, words: str) -> None:
        left, y = self._corner[0], self.place(self._x[0], value)[1]
        self._draw.line(((left - 5, y), (left, y)))
        self._draw.text((left - 9, y + 4), words, "small", "faint", anchor="end")
