"""Draw the figures of a sweep, as PNG."""

from collections.abc import Callable
from itertools import cycle

from matplotlib.figure import Figure

from whiten_evaluation.drawing import GRID, INK, RED, STYLES, label, legend, new_axes, note, png, say_empty
from whiten_evaluation.sweep.curve_figures import betas_figure, dimensions_figure, shrinkage_figure
from whiten_evaluation.sweep.heat_maps import pairs_figure
from whiten_evaluation.sweep.results import Sweep, average, layers_label, worthwhile
from whiten_evaluation.sweep.wording import COLOURS, NAMES, quality


def draw(sweep: Sweep) -> dict[str, bytes]:
    """Return the PNG of each figure by name, without figures that have no data."""
    pictures: dict[str, Callable[[Sweep], Figure | None]] = {
        "layers": layers_figure,
        "pairs": pairs_figure,
        "sizes": sizes_figure,
        "shrinkage": shrinkage_figure,
        "betas": betas_figure,
        "dimensions": dimensions_figure,
        "depths": depths_figure,
    }
    return {name: png(figure) for name, make in pictures.items() if (figure := make(sweep)) is not None}


def layers_figure(sweep: Sweep) -> Figure:
    """Plot the average of every single layer."""
    figure, axes = new_axes(7.2, 4.2)
    for style, pooling in zip(cycle(STYLES), sweep.poolings, strict=False):
        for kind in sweep.kinds:
            found = sorted(sweep.of(pooling, kind, 1), key=lambda score: score.layers)
            if found:
                axes.plot(
                    [score.layers[0] for score in found],
                    [average(score) for score in found],
                    style,
                    color=COLOURS[kind],
                    marker="o",
                    markersize=4,
                    label=f"{pooling}, {NAMES[kind]}",
                )
    axes.set_xticks(sweep.layers)
    label(axes, "layer (0: embeddings)", quality(sweep), "Every layer alone")
    legend(axes)
    if not axes.lines:
        say_empty(axes, "no layer has a score")
    return figure


def sizes_figure(sweep: Sweep) -> Figure:
    """Plot the best combination of each size."""
    figure, axes = new_axes(7.2, 4.4)
    for style, pooling in zip(cycle(STYLES), sweep.poolings, strict=False):
        for kind in sweep.kinds:
            found = [score for size in sweep.sizes() if (score := sweep.best(pooling, kind, size)) is not None]
            if not found:
                continue
            sizes, values = [len(score.layers) for score in found], [average(score) for score in found]
            name = f"{pooling}, {NAMES[kind]}"
            axes.plot(sizes, values, style, color=COLOURS[kind], marker="o", markersize=4, label=name)
            top = max(found, key=average)
            place = (len(top.layers), average(top))
            note(axes, layers_label(top.layers), place, (0, 6), ha="center", color=COLOURS[kind])
    axes.set_xticks(list(sweep.sizes()))
    how = "" if sweep.exhaustive else ", as a beam search found them"
    label(axes, "number of layers averaged", quality(sweep), f"The best combinations{how}")
    legend(axes)
    if not axes.lines:
        say_empty(axes, "no combination has a score")
    return figure


def depths_figure(sweep: Sweep) -> Figure | None:
    """Plot quality against speed, with the lowest and highest of the measurements; None if speed was not measured."""
    points = [
        (depth, depth.texts_per_second, depth.spread, depth.best)
        for depth in sweep.depths
        if depth.texts_per_second is not None and depth.spread is not None and depth.best is not None
    ]
    chosen = worthwhile(sweep.depths)
    if not points or chosen is None:
        return None
    figure, axes = new_axes(7.2, 4.4)
    axes.plot([rate for _, rate, _, _ in points], [average(best) for *_, best in points], color=GRID, linewidth=1)
    for index, (depth, rate, (low, high), best) in enumerate(points):
        colour = RED if depth is chosen[0] else INK
        axes.errorbar(
            rate, average(best), xerr=[[rate - low], [high - rate]], fmt="o", color=colour, markersize=5, capsize=2
        )
        text = f"depth {depth.layer}: {layers_label(best.layers)}, {NAMES[best.whitening]}"
        note(axes, text, (rate, average(best)), (6, (5, -11)[index % 2]), color=colour)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.18, y=0.12)
    label(axes, "texts per second (median, lowest to highest)", quality(sweep), "What a deeper network costs and gives")
    return figure
