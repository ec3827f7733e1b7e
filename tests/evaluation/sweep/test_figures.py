"""Test the figures of a sweep: labels of axes, scales of maps, and that no text leaves its picture."""

import numpy as np
import pytest

from support.figures import texts_outside
from support.sweeps import made_score, made_sweep
from whiten_evaluation.drawing import keep_inside, new_axes, note
from whiten_evaluation.sweep.curve_figures import betas_figure, dimensions_figure, shrinkage_figure
from whiten_evaluation.sweep.figures import depths_figure, draw, layers_figure, sizes_figure
from whiten_evaluation.sweep.heat_maps import pairs_figure, pairs_table
from whiten_evaluation.sweep.results import Sweep, layers_label

pytestmark = pytest.mark.slow

FIGURES = (layers_figure, pairs_figure, sizes_figure, shrinkage_figure, betas_figure, dimensions_figure, depths_figure)


@pytest.mark.parametrize("make", FIGURES)
@pytest.mark.parametrize(
    "sweep",
    [
        made_sweep(),
        made_sweep(2, corpus=False),
        made_sweep(13),
        made_sweep(few=True),
        made_sweep(poolings=("cls", "max")),
    ],
    ids=["usual", "two layers", "13 layers", "few sentences", "other poolings"],
)
def test_axes_have_labels_and_all_text_is_inside(make, sweep: Sweep) -> None:
    figure = make(sweep)
    if figure is None:
        assert make is dimensions_figure
        return
    keep_inside(figure)
    assert texts_outside(figure) == []
    for axes in figure.axes:
        scale = hasattr(axes, "_colorbar")
        assert axes.get_ylabel()
        assert scale or axes.get_xlabel()


def test_label_beside_a_point_is_moved_into_the_picture() -> None:
    figure, axes = new_axes(3, 3)
    axes.plot([0, 1], [0, 1])
    note(axes, "a label that is far too long for here", (1, 1), (6, 5))
    assert texts_outside(figure)
    keep_inside(figure)
    assert texts_outside(figure) == []


def test_every_map_has_a_scale_of_its_own_with_labelled_ends() -> None:
    sweep = made_sweep()
    figure = pairs_figure(sweep)
    keep_inside(figure)
    maps = [axes for axes in figure.axes if not hasattr(axes, "_colorbar")]
    scales = [axes for axes in figure.axes if hasattr(axes, "_colorbar")]
    assert [axes.get_title(loc="left").split(";")[0] for axes in maps] == [
        *("mean, not whitened", "cls, not whitened"),
        *("mean, target", "cls, target"),
        *("mean, corpus", "cls, corpus"),
    ]
    assert len(scales) == len(maps)
    kinds = [(pooling, kind) for kind in sweep.kinds for pooling in sweep.poolings]
    for (pooling, kind), scale in zip(kinds, scales, strict=True):
        table = pairs_table(sweep, pooling, kind)
        ends = [f"{np.nanmin(table):.1f}", f"{np.nanmax(table):.1f}"]
        assert [text.get_text() for text in scale.get_yticklabels()] == ends
        assert scale.get_ylabel() == "Spearman × 100"


def test_map_without_scores_says_so() -> None:
    figure = pairs_figure(made_sweep(few=True))
    empty = [axes for axes in figure.axes if "no pair has a score" in " ".join(text.get_text() for text in axes.texts)]
    assert [axes.get_title(loc="left") for axes in empty] == ["mean, target", "cls, target"]


def test_all_maps_can_be_empty() -> None:
    scores = tuple(made_score("mean", "none", (layer,), None, None) for layer in (0, 1))
    sweep = made_sweep(2, scores=scores, curves=(), fits=(), depths=())
    assert set(draw(sweep)) == {"layers", "pairs", "sizes"}


def test_curves_on_target_and_on_the_corpus_are_beside_one_another() -> None:
    figure = shrinkage_figure(made_sweep())
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "mean, fitted on target",
        "mean, fitted on the corpus",
    ]
    for axes in figure.axes:
        assert axes.lines[0].get_xdata().tolist() == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9]
        assert "shrinkage" in axes.get_xlabel()
    betas = betas_figure(made_sweep(corpus=False))
    assert betas is not None
    [axes] = betas.axes
    assert axes.lines[0].get_xdata().tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_speeds_are_drawn_with_their_spread() -> None:
    figure = depths_figure(made_sweep())
    assert figure is not None
    bars = [collection.get_segments()[0] for collection in figure.axes[0].collections]
    assert [segment[:, 0].tolist() for segment in bars[:2]] == [[800, 990], [400, 495]]
    assert depths_figure(made_sweep(depths=())) is None


def test_neighbouring_layers_are_a_range_in_labels() -> None:
    assert layers_label((0, 2, 3, 4, 6, 7, 9)) == "0,2-4,6,7,9"
    assert layers_label((5,)) == "5"
