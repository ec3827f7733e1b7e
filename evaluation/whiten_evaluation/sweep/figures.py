"""Draw the figures of a sweep: single layers, pairs of layers, and the best combination of each size."""

import io
from collections.abc import Mapping
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from whiten_evaluation.sweep.report import NAMES, pairs_table, text_of
from whiten_evaluation.sweep.search import Sweep, Whitened, average
from whiten_whitening.moments import Float64Array

_COLOURS: Mapping[Whitened, str] = {"none": "#8d99ae", "task": "#d1495b", "corpus": "#2e6f95"}
_STYLES = ("-", "--", ":", "-.")
_INK = "#22223b"
_QUALITY = "Spearman x 100, average of the tasks"


def draw(sweep: Sweep) -> dict[str, bytes]:
    """Return the PNG of each figure by name."""
    figures = {"layers": layers_figure, "pairs": pairs_figure, "sizes": sizes_figure}
    return {name: _png(make(sweep)) for name, make in figures.items()}


def layers_figure(sweep: Sweep) -> Figure:
    """Plot the average of every single layer."""
    figure, axes = _lines("layer (0: embeddings)", "Every layer alone")
    for style, pooling in zip(cycle(_STYLES), sweep.poolings, strict=False):
        for kind in sweep.kinds:
            found = sorted(sweep.of(pooling, kind, 1), key=lambda score: score.layers)
            places = [(score.layers[0], average(score)) for score in found]
            _plot(axes, places, f"{pooling}, {NAMES[kind]}", style, _COLOURS[kind])
    axes.set_xticks(sweep.layers)
    return figure


def sizes_figure(sweep: Sweep) -> Figure:
    """Plot the best combination of each size, with the layers of the best of all sizes."""
    how = "" if sweep.exhaustive else ", as a beam search found them"
    figure, axes = _lines("number of layers averaged", f"The best combinations{how}")
    for style, pooling in zip(cycle(_STYLES), sweep.poolings, strict=False):
        for kind in sweep.kinds:
            sizes = {len(score.layers) for score in sweep.of(pooling, kind)}
            found = [max(sweep.of(pooling, kind, size), key=average) for size in sorted(sizes)]
            places = [(len(score.layers), average(score)) for score in found]
            top = max(found, key=average, default=None)
            best = f": best {text_of(top.layers)}" if top else ""
            _plot(axes, places, f"{pooling}, {NAMES[kind]}{best}", style, _COLOURS[kind])
    axes.set_xticks(range(1, len(sweep.layers) + 1))
    return figure


def pairs_figure(sweep: Sweep) -> Figure:
    """Draw a map of all pairs for each whitening and pooling, each with its own scale; single layers are diagonal."""
    side = max(3.4, 0.42 * len(sweep.layers) + 1.2)
    size = ((side + 0.9) * len(sweep.poolings), (side + 0.2) * len(sweep.kinds))
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    grid = figure.subplots(len(sweep.kinds), len(sweep.poolings), squeeze=False)
    for row, kind in zip(grid, sweep.kinds, strict=True):
        for axes, pooling in zip(row, sweep.poolings, strict=True):
            _draw_map(figure, axes, pairs_table(sweep, pooling, kind), sweep.layers, f"{pooling}, {NAMES[kind]}")
    return figure


def _draw_map(figure: Figure, axes: Any, table: Float64Array, layers: tuple[int, ...], title: str) -> None:
    axes.set_xticks(range(len(table)), layers)
    axes.set_yticks(range(len(table)), layers)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=9, color=_INK, loc="left")
    axes.set_xlabel("layer", fontsize=9, color=_INK)
    axes.set_ylabel("layer", fontsize=9, color=_INK)
    if not np.isfinite(table).any():
        axes.set_xlim(-0.5, len(table) - 0.5)
        axes.set_ylim(-0.5, len(table) - 0.5)
        axes.text(0.5, 0.5, "no pair has a score", transform=axes.transAxes, ha="center", fontsize=8, color=_INK)
        return
    image = axes.imshow(table, cmap="viridis", origin="lower")
    figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=8)
    middle = (np.nanmin(table) + np.nanmax(table)) / 2
    for row, column in np.argwhere(np.isfinite(table)):
        value = table[row, column]
        colour = "white" if value < middle else _INK
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=6, color=colour)


def _lines(x: str, title: str) -> tuple[Figure, Any]:
    """Return a figure with one pair of axes."""
    figure = Figure(figsize=(7.2, 4.3), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(True, color="#e5e5ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(x, fontsize=9, color=_INK)
    axes.set_ylabel(_QUALITY, fontsize=9, color=_INK)
    axes.set_title(title, fontsize=10, color=_INK, loc="left")
    axes.tick_params(labelsize=8)
    return figure, axes


def _plot(axes: Any, places: list[tuple[int, float]], name: str, style: str, colour: str) -> None:
    """Add a line and its entry in the legend, unless there is nothing to draw."""
    if places:
        axes.plot(*zip(*places, strict=True), style, color=colour, marker="o", markersize=4, label=name)
        axes.legend(frameon=False, fontsize=7, ncols=2)


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": "whiten"})
    return stream.getvalue()
