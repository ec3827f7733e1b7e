"""Draw the figures of a sweep, as PNG."""

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from whiten_evaluation.sweep.results import Sweep, Whitened, average, layers_text, worthwhile

_COLOURS: Mapping[Whitened, str] = {"none": "#8d99ae", "target": "#d1495b"}
_NAMES: Mapping[Whitened, str] = {"none": "not whitened", "target": "whitened"}
_STYLES = ("-", "--", ":", "-.")
_INK, _GRID = "#22223b", "#e5e5ea"


def draw(sweep: Sweep) -> dict[str, bytes]:
    """Return the PNG of each figure by name, without figures that have no data."""
    pictures: dict[str, Callable[[Sweep], Figure | None]] = {
        "layers": _layers,
        "pairs": _pairs,
        "sizes": _sizes,
        "dimensions": _dimensions,
        "depths": _depths,
    }
    return {name: _png(figure) for name, make in pictures.items() if (figure := make(sweep)) is not None}


def _layers(sweep: Sweep) -> Figure:
    """Plot the average of every single layer."""
    figure, axes = _axes(7.2, 4.2)
    for style, pooling in zip(_STYLES, sweep.poolings, strict=False):
        for kind in _NAMES:
            found = sorted(sweep.of(pooling, kind, 1), key=lambda score: score.layers)
            axes.plot(
                [score.layers[0] for score in found],
                [average(score) for score in found],
                style,
                color=_COLOURS[kind],
                marker="o",
                markersize=4,
                label=f"{pooling}, {_NAMES[kind]}",
            )
    axes.set_xticks(sweep.layers)
    _label(axes, "layer (0: embeddings)", f"Spearman × 100, average of {sweep.average_of}", "Every layer alone")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _pairs(sweep: Sweep) -> Figure:
    """Draw heat maps of every pair of layers, with single layers on the diagonal."""
    count, pooling = len(sweep.layers), sweep.poolings[0]
    side = max(3.4, 0.42 * count + 1.2)
    figure = Figure(figsize=(2 * side + 1, side + 0.5), dpi=150, layout="constrained")
    tables: dict[Whitened, Any] = {}
    for kind in _NAMES:
        table = np.full((count, count), np.nan)
        for score in sweep.of(pooling, kind):
            if len(score.layers) <= 2:
                rows = [sweep.layers.index(layer) for layer in (score.layers[0], score.layers[-1])]
                table[rows[0], rows[1]] = table[rows[1], rows[0]] = average(score)
        tables[kind] = table
    every = np.concatenate([table.ravel() for table in tables.values()])
    low, high = (np.nanmin(every), np.nanmax(every)) if np.isfinite(every).any() else (0, 1)
    image = None
    for place, (kind, table) in enumerate(tables.items(), 1):
        axes: Any = figure.add_subplot(1, 2, place)
        image = axes.imshow(table, cmap="viridis", vmin=low, vmax=high, origin="lower")
        axes.set_xticks(range(count), sweep.layers)
        axes.set_yticks(range(count), sweep.layers)
        for row in range(count):
            for column in range(count):
                value = table[row, column]
                if np.isfinite(value):
                    colour = "white" if value < (low + high) / 2 else _INK
                    axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=6, color=colour)
        best = sweep.best(pooling, kind, 2)
        said = f"; best {layers_text(best.layers)}: {average(best):.2f}" if best else ""
        axes.set_title(f"{pooling}, {_NAMES[kind]}{said}", fontsize=9, color=_INK)
        axes.tick_params(length=0, labelsize=8)
        for spine in axes.spines.values():
            spine.set_visible(False)
    assert image is not None
    figure.colorbar(image, ax=figure.axes, shrink=0.8, label="Spearman × 100")
    return figure


def _sizes(sweep: Sweep) -> Figure:
    """Plot the best combination of each size."""
    figure, axes = _axes(7.2, 4.4)
    for style, pooling in zip(_STYLES, sweep.poolings, strict=False):
        for kind in _NAMES:
            found = [score for size in sweep.sizes() if (score := sweep.best(pooling, kind, size)) is not None]
            if not found:
                continue
            label = f"{pooling}, {_NAMES[kind]}"
            sizes, values = [len(score.layers) for score in found], [average(score) for score in found]
            axes.plot(sizes, values, style, color=_COLOURS[kind], marker="o", markersize=4, label=label)
            top = max(found, key=average)
            axes.annotate(
                layers_text(top.layers),
                (len(top.layers), average(top)),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                color=_COLOURS[kind],
            )
    axes.set_xticks(list(sweep.sizes()))
    how = "" if sweep.exhaustive else ", as a beam search found them"
    _label(axes, "layers averaged", f"Spearman × 100, average of {sweep.average_of}", f"The best combinations{how}")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _dimensions(sweep: Sweep) -> Figure | None:
    """Plot the average against the number of dimensions kept."""
    if not sweep.curves:
        return None
    figure, axes = _axes(7.2, 4.2)
    for index, curve in enumerate(sweep.curves):
        label = f"{layers_text(curve.layers)}: {curve.what}"
        axes.plot(curve.dimensions, curve.averages, _STYLES[index % 4], linewidth=1.6, label=label)
        top = int(np.argmax(curve.averages))
        axes.plot(curve.dimensions[top], curve.averages[top], "o", markersize=4, color=axes.lines[-1].get_color())
    _label(axes, "dimensions kept", f"Spearman × 100, average of {sweep.average_of}", "Whitened to fewer dimensions")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _depths(sweep: Sweep) -> Figure | None:
    """Plot quality against speed."""
    points = [
        (depth, depth.texts_per_second, depth.best)
        for depth in sweep.depths
        if depth.texts_per_second is not None and depth.best is not None
    ]
    chosen = worthwhile(sweep.depths)
    if not points or chosen is None:
        return None
    figure, axes = _axes(7.2, 4.4)
    axes.plot([rate for _, rate, _ in points], [average(best) for _, _, best in points], color=_GRID, linewidth=1)
    for index, (depth, rate, best) in enumerate(points):
        colour = _COLOURS["target"] if depth is chosen[0] else _INK
        axes.plot(rate, average(best), "o", color=colour, markersize=6, zorder=2)
        label = f"{depth.layer} blocks: {layers_text(best.layers)} {_NAMES[best.whitening]}"
        place = (rate, average(best))
        below = (6, (5, -11)[index % 2])
        axes.annotate(label, place, xytext=below, textcoords="offset points", fontsize=7, color=colour)
    axes.set_xscale("log")
    axes.margins(x=0.18, y=0.12)
    quality = f"Spearman × 100, average of {sweep.average_of}"
    _label(axes, "texts per second", quality, "What a deeper network costs and gives")
    return figure


def _axes(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _label(axes: Any, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x, fontsize=9, color=_INK)
    axes.set_ylabel(y, fontsize=9, color=_INK)
    axes.set_title(title, fontsize=10, color=_INK, loc="left")
    axes.tick_params(labelsize=8)


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": "whiten"})
    return stream.getvalue()
