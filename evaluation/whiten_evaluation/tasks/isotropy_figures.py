"""Draw the cloud of vectors in two dimensions, and IsoScore as bars, before and after whitening.

These are the pictures of "Whitening Not Recommended for Classification Tasks in LLMs" (Forooghi et al. 2024), figures
2 and 3.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from whiten_evaluation.drawing import BLUE, GREY, INK, RED, label, new_axes, new_figure, plain, shortened
from whiten_evaluation.tasks.isotropy import Measured

Found = Sequence[tuple[str, Sequence[Measured]]]
"""Path of each bundle, with what was measured of its vectors."""

_SIDE = 3.0
"""Width and height of one cloud, in inches."""

_COLUMNS = 4
"""Largest number of clouds beside one another."""

_BAR = 0.26
"""Height of one bar, in inches."""


def clouds_figure(found: Found) -> Figure:
    """Draw clouds of each bundle: before whitening, after it, and after each whitening that was fitted.

    Each bundle begins a new row. Both axes of a cloud have the same scale; a cross marks the origin.
    """
    lines = [
        [(bundle, one) for one in measured[start : start + _COLUMNS]]
        for bundle, measured in found
        for start in range(0, len(measured), _COLUMNS)
    ]
    columns = max(map(len, lines))
    figure = new_figure(_SIDE * columns + 0.6, (_SIDE + 0.4) * len(lines))
    grid = figure.subplots(len(lines), columns, squeeze=False)
    for row, line in zip(grid, lines, strict=True):
        for axes in row[len(line) :]:
            axes.remove()
        for axes, (bundle, one) in zip(row, line, strict=False):
            plain(axes)
            axes.plot(*one.cloud.T, "o", color=_colour(one), markersize=2, alpha=0.4, markeredgewidth=0)
            axes.plot(0, 0, "+", color=INK, markersize=9)
            axes.set_aspect("equal", adjustable="datalim")
            title = f"{shortened(bundle)}\n{in_words(one)}"
            label(axes, "first axis about the origin", "second axis about the origin", title, size=8)
    return figure


def isoscore_figure(found: Found) -> Figure:
    """Draw the IsoScore of each bundle as bars: before whitening, after it, and after each that was fitted."""
    bars = [(f"{shortened(bundle)}: {in_words(one)}", one) for bundle, measured in found for one in measured]
    figure, axes = new_axes(7.2, max(1.6, _BAR * len(bars) + 0.9))
    places = range(len(bars))
    axes.barh(places, [one.record.iso_score for _, one in bars], 0.7, color=[_colour(one) for _, one in bars])
    for place, (_, one) in zip(places, bars, strict=True):
        score = one.record.iso_score
        axes.text(score + 0.01, place, f"{score:.3f}", va="center", fontsize=7, color=INK)
    axes.set_yticks(places, [name for name, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1)
    axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.grid(False, axis="y")
    label(axes, "IsoScore (0: one direction; 1: isotropic)", "", "Isotropy of the vectors")
    return figure


def in_words(one: Measured) -> str:
    """Return a label for vectors before or after a whitening."""
    names = {"before": "not whitened", "after": "its whitening"}
    return names.get(one.name, f"{one.name} on these texts")


def _colour(one: Measured) -> str:
    return {"before": GREY, "after": RED}.get(one.name, BLUE)
