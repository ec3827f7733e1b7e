"""Draw heat maps of every pair of layers: poolings beside one another, whitenings below one another."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from whiten_evaluation.drawing import INK, label, new_figure, say_empty
from whiten_evaluation.sweep.results import Sweep, Whitened, average, layers_text
from whiten_evaluation.sweep.wording import NAMES, SPEARMAN
from whiten_runtime.bundle.manifest import Pooling
from whiten_whitening.moments import Float64Array

_LEAST_SIDE, _CELL, _REST = 3.4, 0.42, 1.2
"""Inches: least width of a map, width of a cell, and what surrounds the cells."""

_SCALE = 0.9
"""Inches for the colour scale beside a map."""


def pairs_figure(sweep: Sweep) -> Figure:
    """Draw a map for each whitening and pooling, each with a scale of its own; single layers are on the diagonal."""
    side = max(_LEAST_SIDE, _CELL * len(sweep.layers) + _REST)
    figure = new_figure((side + _SCALE) * len(sweep.poolings), (side + 0.2) * len(sweep.kinds))
    grid = figure.subplots(len(sweep.kinds), len(sweep.poolings), squeeze=False)
    for row, kind in zip(grid, sweep.kinds, strict=True):
        for axes, pooling in zip(row, sweep.poolings, strict=True):
            _draw_map(figure, axes, sweep, pooling, kind)
    return figure


def pairs_table(sweep: Sweep, pooling: Pooling, kind: Whitened) -> Float64Array:
    """Return the averages of every pair of layers, single layers on the diagonal, [layers, layers]; NaN for none."""
    table = np.full((len(sweep.layers), len(sweep.layers)), np.nan)
    for score in sweep.of(pooling, kind):
        if len(score.layers) <= 2:
            first, second = (sweep.layers.index(layer) for layer in (score.layers[0], score.layers[-1]))
            table[first, second] = table[second, first] = average(score)
    return table


def _draw_map(figure: Figure, axes: Any, sweep: Sweep, pooling: Pooling, kind: Whitened) -> None:
    table = pairs_table(sweep, pooling, kind)
    empty = not np.isfinite(table).any()
    low, high = (0.0, 1.0) if empty else (float(np.nanmin(table)), float(np.nanmax(table)))
    image = axes.imshow(table, cmap="viridis", vmin=low, vmax=max(high, low + 1e-6), origin="lower")
    scale = figure.colorbar(image, ax=axes, shrink=0.8, ticks=[low, high] if high > low else [low])
    scale.ax.set_yticklabels([f"{value:.1f}" for value in scale.get_ticks()])
    scale.ax.tick_params(labelsize=8)
    scale.set_label(SPEARMAN, fontsize=8, color=INK)
    title = f"{pooling}, {NAMES[kind]}"
    if empty:
        scale.ax.set_visible(False)  # it keeps its place, so that all maps have the same size
        say_empty(axes, "no pair has a score:\nsee below the tables")
    else:
        _write_values(axes, table, (low + high) / 2)
        best = sweep.best(pooling, kind, 2)
        title += f"; best pair {layers_text(best.layers)}: {average(best):.2f}" if best else ""
    axes.set_xticks(range(len(table)), sweep.layers)
    axes.set_yticks(range(len(table)), sweep.layers)
    label(axes, "layer", "layer", title, size=9)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)


def _write_values(axes: Any, table: Float64Array, middle: float) -> None:
    for row, column in np.argwhere(np.isfinite(table)):
        value = table[row, column]
        colour = "white" if value < middle else INK
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=6, color=colour)
