"""Draw figures in one style: axes with labels, legends, and text that stays inside its picture."""

import io
from pathlib import PurePath
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation

INK, GRID = "#22223b", "#e5e5ea"
GREY, RED, BLUE = "#8d99ae", "#d1495b", "#2e6f95"
STYLES = ("-", "--", ":", "-.")

_DPI = 150
_MARGIN = 4.0
"""Distance between a label and the border of its picture, in pixels."""

_POINTS_PER_INCH = 72


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of a width and height in inches, whose axes are placed so that their labels fit."""
    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


def new_axes(width: float, height: float) -> tuple[Figure, Any]:
    """Return a figure, in inches, with one pair of axes."""
    figure = new_figure(width, height)
    axes = figure.add_subplot()
    plain(axes)
    return figure, axes


def plain(axes: Any) -> None:
    """Give axes a light grid, and no lines at the top and on the right."""
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def label(axes: Any, x: str, y: str, title: str, size: int = 10) -> None:
    """Name both axes and give them a title, whose size is in points."""
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    axes.set_title(title, fontsize=size, color=INK, loc="left")
    axes.tick_params(labelsize=8)


def legend(axes: Any) -> None:
    """Add a legend where it hides least; in two columns if it has many entries."""
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(frameon=False, fontsize=8 if len(handles) <= 6 else 7, ncols=1 if len(handles) <= 6 else 2)


def note(axes: Any, text: str, at: tuple[float, float], offset: tuple[float, float], **style: Any) -> None:
    """Write a label beside a point; `keep_inside` moves it if it leaves the picture.

    Args:
        axes: axes of the point.
        text: the label.
        at: coordinates of the point.
        offset: offset of the label from the point, in points.
        style: colour and alignment, as for matplotlib.
    """
    made = axes.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=7, **style)
    made.set_in_layout(False)  # else the axes shrink to make room for it


def say_empty(axes: Any, reason: str) -> None:
    """Write in the middle of axes why they show nothing."""
    axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center", fontsize=8, color=INK)


def shortened(name: str, most: int = 28) -> str:
    """Return the last part of a path, with its middle left out if it has more than `most` characters."""
    last = PurePath(name).name or name
    if len(last) <= most:
        return last
    return f"{last[: most // 2]}…{last[len(last) - (most - most // 2 - 1) :]}"


def keep_inside(figure: Figure) -> None:
    """Move labels of points that leave the picture back into it."""
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    width, height = figure.bbox.width, figure.bbox.height
    for annotation in figure.findobj(Annotation):
        box = annotation.get_window_extent()
        right = max(0.0, _MARGIN - box.x0) - max(0.0, box.x1 - width + _MARGIN)
        up = max(0.0, _MARGIN - box.y0) - max(0.0, box.y1 - height + _MARGIN)
        x, y = annotation.xyann
        scale = _POINTS_PER_INCH / figure.dpi
        annotation.xyann = (x + right * scale, y + up * scale)


def png(figure: Figure) -> bytes:
    """Return the picture as PNG."""
    return _saved(figure, "png", {"Software": "whiten"})


def svg(figure: Figure) -> bytes:
    """Return the picture as SVG with its text as outlines: the same bytes each time, and no fonts needed to view it."""
    with rc_context({"svg.hashsalt": "whiten", "svg.fonttype": "path"}):
        return _saved(figure, "svg", {"Creator": "whiten", "Date": None})


def _saved(figure: Figure, kind: str, metadata: dict[str, str | None]) -> bytes:
    keep_inside(figure)
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, metadata=metadata)
    return stream.getvalue()
