"""Draw curves of quality against dimensions kept, shrinkage and the exponent β."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from whiten_evaluation.drawing import STYLES, label, legend, new_axes, new_figure, plain, say_empty
from whiten_evaluation.sweep.results import Sweep, Varied, Whitened, layers_label
from whiten_evaluation.sweep.wording import quality

_TITLES: Mapping[Whitened, str] = {"target": "fitted on target", "corpus": "fitted on the corpus"}


def dimensions_figure(sweep: Sweep) -> Figure | None:
    """Plot the average against the number of dimensions kept; None without curves."""
    if not sweep.curves:
        return None
    figure, axes = new_axes(7.2, 4.2)
    for index, curve in enumerate(sweep.curves):
        name = f"{layers_label(curve.layers)}: {curve.what}"
        (line,) = axes.plot(curve.dimensions, curve.averages, STYLES[index % 4], linewidth=1.6, label=name)
        top = int(np.argmax(curve.averages))
        axes.plot(curve.dimensions[top], curve.averages[top], "o", markersize=4, color=line.get_color())
    label(axes, "dimensions kept", quality(sweep), "Whitened to fewer dimensions, fitted on target")
    legend(axes)
    return figure


def shrinkage_figure(sweep: Sweep) -> Figure | None:
    """Plot the average against the weight of the shrinkage; None without curves."""
    return _fits_figure(sweep, "shrinkage", "weight of the shrinkage (0: full whitening)")


def betas_figure(sweep: Sweep) -> Figure | None:
    """Plot the average against the exponent β; None without curves."""
    return _fits_figure(sweep, "beta", "exponent β (0: centred only; 1: full whitening)")


def _fits_figure(sweep: Sweep, varied: Varied, name: str) -> Figure | None:
    """Draw a pair of axes for each set of sentences that whitenings are fitted on, with the same scale."""
    kinds = [kind for kind in _TITLES if any(curve.whitening == kind for curve in sweep.fits)]
    if not kinds:
        return None
    figure = new_figure(4.8 * len(kinds) + 0.4, 4.2)
    columns = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(columns, kinds, strict=True):
        plain(axes)
        curves = [curve for curve in sweep.fits if (curve.whitening, curve.varied) == (kind, varied)]
        drawn = False
        for index, curve in enumerate(curves):
            averages = np.array([np.nan if value is None else value for value in curve.averages])
            text = f"{layers_label(curve.layers)}: {curve.what}"
            (line,) = axes.plot(curve.values, averages, STYLES[index % 4], marker=".", linewidth=1.6, label=text)
            if np.isfinite(averages).any():
                top, drawn = int(np.nanargmax(averages)), True
                axes.plot(curve.values[top], averages[top], "o", markersize=5, color=line.get_color())
        axes.set_xlim(-0.05, 1.05)
        label(axes, name, quality(sweep), f"{curves[0].pooling}, {_TITLES[kind]}")
        if drawn:
            legend(axes)
        else:
            say_empty(axes, "too few sentences to whiten on")
    return figure
