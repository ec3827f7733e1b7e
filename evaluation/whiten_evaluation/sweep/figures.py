"""Draw the scores of a sweep: single layers, pairs of layers, and the best combination of each size."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from whiten_evaluation.sweep.result import Sweep, Whitened, average, text_of
from whiten_whitening.moments import Float64Array

NAMES: Mapping[Whitened, str] = {"none": "not whitened", "task": "task", "corpus": "corpus"}

_COLOURS: Mapping[Whitened, str] = {"none": "#8d99ae", "task": "#d1495b", "corpus": "#2e6f95"}
_INK = "#22223b"
_QUALITY = "Spearman x 100, average of the tasks"


def pairs_table(sweep: Sweep, kind: Whitened) -> Float64Array:
    """Return the averages of every pair of layers, single layers on the diagonal, [layers, layers]; NaN for none."""
    table = np.full((len(sweep.layers), len(sweep.layers)), np.nan)
    for score in sweep.of(kind):
        if len(score.layers) <= 2:
            first, second = (sweep.layers.index(layer) for layer in (score.layers[0], score.layers[-1]))
            table[first, second] = table[second, first] = average(score)
    return table


def figures(sweep: Sweep) -> dict[str, Figure]:
    """Draw single layers, pairs of layers, and the best combination of each size; return them by caption."""
    return {
        "Every layer alone": _layers_figure(sweep),
        "Every two layers, single layers on the diagonal": _pairs_figure(sweep),
        "The best combination of each size": _sizes_figure(sweep),
    }


def _layers_figure(sweep: Sweep) -> Figure:
    figure, axes = _lines("layer (0: embeddings)", "Every layer alone")
    for kind, name in NAMES.items():
        scores = sorted(sweep.of(kind, 1), key=lambda score: score.layers)
        _plot(axes, [(score.layers[0], average(score)) for score in scores], name, _COLOURS[kind])
    axes.set_xticks(sweep.layers)
    return figure


def _sizes_figure(sweep: Sweep) -> Figure:
    """Plot the best combination of each size, with the layers of the best of all sizes."""
    how = "" if sweep.exhaustive else ", as a beam search found them"
    figure, axes = _lines("number of layers averaged", f"The best combinations{how}")
    for kind, name in NAMES.items():
        sizes = {len(score.layers) for score in sweep.of(kind)}
        scores = [max(sweep.of(kind, size), key=average) for size in sorted(sizes)]
        places = [(len(score.layers), average(score)) for score in scores]
        top = max(scores, key=average, default=None)
        _plot(axes, places, f"{name}: best {text_of(top.layers)}" if top else name, _COLOURS[kind])
    axes.set_xticks(range(1, len(sweep.layers) + 1))
    return figure


def _pairs_figure(sweep: Sweep) -> Figure:
    """Draw a map of all pairs for each whitening, each with its own scale; single layers are on the diagonal."""
    side = max(3.4, 0.42 * len(sweep.layers) + 1.2)
    figure = Figure(figsize=(side + 0.9, (side + 0.2) * len(NAMES)), dpi=150, layout="constrained")
    for axes, (kind, name) in zip(figure.subplots(len(NAMES)), NAMES.items(), strict=True):
        _draw_map(figure, axes, pairs_table(sweep, kind), sweep.layers, name)
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


def _plot(axes: Any, places: list[tuple[int, float]], name: str, colour: str) -> None:
    """Add a line and its entry in the legend, unless there is nothing to draw."""
    if places:
        axes.plot(*zip(*places, strict=True), color=colour, marker="o", markersize=4, label=name)
        axes.legend(frameon=False, fontsize=7, ncols=2)


def png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": "whiten"})
    return stream.getvalue()
