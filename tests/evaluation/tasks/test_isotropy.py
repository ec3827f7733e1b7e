"""Test the cloud in two dimensions, and the pictures of isotropy."""

import numpy as np
import pytest

from support.figures import texts_outside
from whiten_evaluation.drawing import keep_inside, svg
from whiten_evaluation.embedding import TextVectors
from whiten_evaluation.tasks.isotropy import Measured, cloud, measure, measure_fitted, specs
from whiten_evaluation.tasks.isotropy_figures import clouds_figure, isoscore_figure
from whiten_runtime.errors import UsageError
from whiten_whitening.moments import Moments


def made(n: int = 400, width: int = 8, seed: int = 0) -> np.ndarray:
    """Vectors whose variance lies mostly along the fourth and the second coordinate, around a distant mean."""
    scale = np.full(width, 0.1)
    scale[3], scale[1] = 5, 2
    random = np.random.default_rng(seed)
    return np.asarray(random.normal(size=(n, width)) * scale + 10 * np.eye(width)[3], np.float32)


def test_cloud_shows_the_two_axes_of_the_largest_second_moment() -> None:
    vectors = -made()
    found = cloud(vectors, Moments.of(vectors))
    np.testing.assert_allclose(found[:, 0], -vectors[:, 3], atol=0.5)  # not centred, its mean not negative
    np.testing.assert_allclose(np.abs(found[:, 1]), np.abs(vectors[:, 1]), atol=0.5)
    assert cloud(vectors, Moments.of(vectors), 50).shape == (50, 2)
    np.testing.assert_array_equal(cloud(vectors, Moments.of(vectors), 50)[[0, -1]], found[[0, -1]])


def test_vectors_of_a_similar_direction_lie_far_from_the_origin() -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 8)) + 9 * np.eye(8)[5]
    np.testing.assert_allclose(cloud(vectors, Moments.of(vectors)).mean(axis=0), [9, 0], atol=0.3)


def test_cloud_of_one_dimension_lies_on_a_line() -> None:
    vectors = np.arange(5.0)[:, None]
    np.testing.assert_array_equal(cloud(vectors, Moments.of(vectors)), [[x, 0] for x in range(5)])


def test_whitening_makes_the_cloud_round() -> None:
    vectors = made()
    texts = TextVectors({f"text {row}": row for row in range(len(vectors))}, vectors)
    [found] = measure_fitted(texts, specs(["zca", "zca"], None, 1.0, "none"))
    assert found.name == "zca"
    assert found.record.iso_score == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(found.cloud.std(axis=0, ddof=1), 1, atol=1e-6)
    np.testing.assert_allclose(found.cloud.mean(axis=0), 0, atol=1e-6)
    with pytest.raises(UsageError, match="dim 4 cannot be kept of zca"):
        specs(["pca", "zca"], 4, 1.0, "none")


@pytest.mark.slow
@pytest.mark.parametrize("bundles", [("a",), ("bundles/" + "a-name-far-too-long-" * 4, "b", "c")])
@pytest.mark.parametrize("names", [("before",), ("before", "after", "pca", "zca", "cholesky", "zca-cor", "pca-cor")])
def test_pictures_have_axis_labels_and_all_text_inside(bundles: tuple[str, ...], names: tuple[str, ...]) -> None:
    measured = [Measured(name, 8, measure(name, made()).record, measure(name, made()).cloud) for name in names]
    found = [(bundle, measured) for bundle in bundles]
    for figure in (clouds_figure(found), isoscore_figure(found)):
        keep_inside(figure)
        assert texts_outside(figure) == []
        assert all(axes.get_xlabel() for axes in figure.axes)
        assert svg(figure).startswith(b"<?xml")


def test_text_outside_its_picture_is_found() -> None:
    figure = isoscore_figure([("a", [measure("before", made())])])
    figure.axes[0].text(1.3, 0, "beyond the border")
    assert texts_outside(figure) == ["beyond the border"]
