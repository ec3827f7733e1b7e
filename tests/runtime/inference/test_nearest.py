"""Test the search for the nearest rows against a full sort."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from whiten_runtime.inference import vectors as nearest
from whiten_runtime.inference.vectors import Nearest, row_cosines, similarity_matrix

WHOLE = st.integers(-3, 3).map(float)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 6), st.integers(1, 12), st.integers(1, 4), st.integers(1, 14), st.integers(1, 5))
def test_parts_give_what_a_full_sort_gives(
    data: st.DataObject, queries: int, count: int, width: int, top: int, step: int
) -> None:
    first = data.draw(arrays(np.float32, (queries, width), elements=WHOLE))
    rows = data.draw(arrays(np.float32, (count, width), elements=WHOLE))
    found = Nearest.empty(queries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearest, "_ROWS_AT_ONCE", 2)
        for start in range(0, count, step):
            found = found.add(first, rows[start : start + step], start, top)
    kept = min(top, count)
    assert (found.rows.shape, found.cosines.shape, found.cosines.dtype) == (
        (queries, kept),
        (queries, kept),
        np.float32,
    )
    every = similarity_matrix(first, rows, "cosine")
    np.testing.assert_allclose(found.cosines, -np.sort(-every, axis=1)[:, :kept], atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(every, found.rows, axis=1), found.cosines, atol=1e-6)
    assert all(len(set(row)) == kept for row in found.rows.tolist())


def test_among_equals_the_lower_number_comes_first() -> None:
    rows = np.tile(np.array([[1, 0], [0, 1]], np.float32), (3, 1))
    found = Nearest.empty(1).add(rows[:1], rows[:3], 0, 6).add(rows[:1], rows[3:], 3, 6)
    assert found.rows.tolist() == [[0, 2, 4, 1, 3, 5]]
    assert found.cosines.tolist() == [[1, 1, 1, 0, 0, 0]]


def test_no_queries_have_no_nearest() -> None:
    assert Nearest.empty(0).add(np.empty((0, 2), np.float32), np.ones((3, 2), np.float32), 0, 2).rows.shape == (0, 0)


def test_cosines_of_rows_are_the_diagonal_of_all() -> None:
    generator = np.random.default_rng(0)
    first, second = (generator.normal(size=(7, 5)).astype(np.float32) for _ in range(2))
    second[3] = 0
    want = np.diag(similarity_matrix(first, second, "cosine"))
    np.testing.assert_allclose(row_cosines(first, second), want, atol=1e-6)
    assert row_cosines(first, second)[3] == 0
