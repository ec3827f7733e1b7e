"""Where the texts of a figure lie."""

from collections.abc import Iterator

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


def texts_outside(figure: Figure) -> list[str]:
    """The texts of a figure that its border cuts, or that lie outside of it."""
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    hidden = set(undrawn(figure))
    hidden.update(text for axes in figure.axes if not axes.get_visible() for text in axes.findobj(Text))
    found = []
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in hidden:
            box = text.get_window_extent()
            if min(box.x0, box.y0) < -0.5 or box.x1 > figure.bbox.width + 0.5 or box.y1 > figure.bbox.height + 0.5:
                found.append(text.get_text())
    return found


def undrawn(figure: Figure) -> Iterator[Text]:
    """Labels of ticks beyond the ends of their axis, which matplotlib keeps but does not draw."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low <= tick.get_loc() <= high:
                    yield from (tick.label1, tick.label2)
