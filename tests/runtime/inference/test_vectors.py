"""Test similarities of vectors against scikit-learn and scipy."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import cosine_similarity

from whiten_runtime.bundle.manifest import Similarity
from whiten_runtime.inference import vectors
from whiten_runtime.inference.vectors import similarity_matrix, unit

SIMILARITIES = get_args(Similarity)
NUMBERS = st.floats(-100, 100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)


def wanted(first: np.ndarray, second: np.ndarray, similarity: str) -> np.ndarray:
    one, other = first.astype(np.float64), second.astype(np.float64)
    if similarity == "cosine":
        return np.asarray(cosine_similarity(one, other))
    if similarity == "dot":
        return np.asarray(one @ other.T)
    return -cdist(one, other, "euclidean" if similarity == "euclidean" else "cityblock")


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("at_once", [1, 50, 1 << 22])
@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 9), st.integers(1, 9), st.integers(1, 8))
def test_similarities_equal_those_of_other_libraries(
    similarity: Similarity, at_once: int, data: st.DataObject, rows: int, columns: int, width: int
) -> None:
    first = data.draw(arrays(np.float32, (rows, width), elements=NUMBERS))
    second = data.draw(arrays(np.float32, (columns, width), elements=NUMBERS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "_AT_ONCE", at_once)
        got = similarity_matrix(first, second, similarity)
    want = wanted(first, second, similarity)
    assert (got.dtype, got.shape) == (np.float32, (rows, columns))
    largest = {"cosine": 1, "dot": (np.abs(first) @ np.abs(second).T).max()}.get(similarity, np.abs(want).max())
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * largest)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (3, 0), (0, 0)])
def test_no_vectors_have_no_similarities(similarity: Similarity, rows: int, columns: int) -> None:
    first, second = np.ones((rows, 4), np.float32), np.ones((columns, 4), np.float32)
    got = similarity_matrix(first, second, similarity)
    assert (got.dtype, got.shape) == (np.float32, (rows, columns))


@pytest.mark.parametrize("similarity", ["euclidean", "manhattan"])
def test_distances_hold_few_differences_in_memory(similarity: Similarity, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    norm = np.linalg.norm

    def measured(differences: np.ndarray, **options: object) -> np.ndarray:
        sizes.append(differences.size)
        return np.asarray(norm(differences, **options))

    monkeypatch.setattr(vectors.np.linalg, "norm", measured)
    monkeypatch.setattr(vectors, "_AT_ONCE", 1000)
    generator = np.random.default_rng(0)
    first, second = (generator.normal(size=(count, 8)).astype(np.float32) for count in (90, 30))
    np.testing.assert_allclose(
        similarity_matrix(first, second, similarity), wanted(first, second, similarity), rtol=1e-5
    )
    assert max(sizes) <= 1000
    assert len(sizes) == 90 // (1000 // (30 * 8)) + 1


@pytest.mark.parametrize("similarity", ["euclidean", "manhattan"])
def test_distance_of_nearly_equal_vectors_keeps_its_digits(similarity: Similarity) -> None:
    first = np.full((1, 4), 1000, np.float32)
    second = first + np.array([0.25, 0, 0, 0], np.float32)
    assert similarity_matrix(first, second, similarity)[0, 0] == -0.25


def test_rows_of_zeros_stay_and_are_like_no_other() -> None:
    rows = np.array([[3, 4], [0, 0]], np.float32)
    np.testing.assert_allclose(unit(rows), [[0.6, 0.8], [0, 0]])
    np.testing.assert_allclose(similarity_matrix(rows, rows, "cosine"), [[1, 0], [0, 0]])
    assert unit(rows).dtype == np.float32
