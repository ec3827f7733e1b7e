"""Draw the scores of codes against their bytes."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from whiten_evaluation.drawing import BLUE, INK, label, legend, new_figure, note, plain, shortened
from whiten_evaluation.tasks.codes import CodeScore

Found = Sequence[tuple[str, Sequence[CodeScore]]]
"""Name of each bundle, with the scores of its codes."""

_WIDTH, _HEIGHT, _COLUMNS = 4.6, 3.4, 2


def codes_figure(found: Found) -> Figure:
    """Draw one panel for each bundle: score over bytes of the codes, and the Pareto front."""
    columns = min(_COLUMNS, len(found))
    rows = -(-len(found) // columns)
    figure = new_figure(_WIDTH * columns, _HEIGHT * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for index, axes in enumerate(grid.flat):
        if index >= len(found):
            axes.remove()
            continue
        name, scores = found[index]
        plain(axes)
        _draw(axes, scores)
        label(axes, "bytes of a vector", "Spearman × 100, mean of the tasks", shortened(name))  # noqa: RUF001
        if index == 0:
            legend(axes)
    return figure


def _draw(axes: Any, scores: Sequence[CodeScore]) -> None:
    front = sorted((one for one in scores if one.front), key=lambda one: one.bytes)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.step(
        *zip(*((one.bytes, one.spearman) for one in front), strict=True),
        where="post",
        color=INK,
        linewidth=0.8,
        linestyle=":",
        label="front",
    )
    own = sorted((one for one in scores if one.name == "codes"), key=lambda one: one.bytes)
    if own:
        points = [one.bytes for one in own], [one.spearman for one in own]
        axes.plot(*points, color=BLUE, marker="o", markersize=4, linewidth=1.2, label="codes")
    for one in scores:
        if one.name != "codes":
            axes.plot(one.bytes, one.spearman, "x", color=INK, markersize=6)
            note(axes, one.name, (one.bytes, one.spearman), (0, 6), color=INK, ha="center")
