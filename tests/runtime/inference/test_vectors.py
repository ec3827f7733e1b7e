"""Test similarities against scikit-learn and scipy, the search for the nearest rows, and quantised vectors."""

import tracemalloc
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import cosine_similarity

from whiten_runtime.bundle.manifest import Similarity, VectorPrecision
from whiten_runtime.errors import TextError, UsageError
from whiten_runtime.inference import vectors
from whiten_runtime.inference import vectors as nearest
from whiten_runtime.inference.vectors import (
    Nearest,
    Quantizer,
    row_cosines,
    row_similarities,
    rows_of,
    similarity_matrix,
    unit,
)

SIMILARITIES = get_args(Similarity)
NUMBERS = st.floats(-100, 100, width=32).map(lambda x: x if abs(x) > 1e-3 else 0)


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
        patch.setattr(vectors, "_NUMBERS_PER_BLOCK", at_once)
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
def test_distances_hold_few_differences_in_memory(similarity: Similarity) -> None:
    generator = np.random.default_rng(0)
    first, second = (generator.normal(size=(count, 16)).astype(np.float32) for count in (3000, 2000))
    tracemalloc.start()
    found = similarity_matrix(first, second, similarity)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(found, wanted(first, second, similarity), rtol=1e-5)
    assert peak < 10 * found.nbytes  # all differences at once, in float64, would be 32 times the result


@pytest.mark.parametrize("similarity", ["euclidean", "manhattan"])
def test_distance_of_nearly_equal_vectors_keeps_its_digits(similarity: Similarity) -> None:
    first = np.full((1, 4), 1000, np.float32)
    second = first + np.array([0.25, 0, 0, 0], np.float32)
    assert similarity_matrix(first, second, similarity)[0, 0] == -0.25


SIZES = (1e-45, 1e-40, 1e-38, 1e-30, 1e-20, 1e-12, 1.0, 1e12, 1e18, 1e19, 1e25, 1e30, 1e37)


def sized(seed: int = 0, width: int = 16) -> np.ndarray:
    """Return a row of each size, those of the smallest made of denormal numbers, and a row of zeros."""
    rows = np.random.default_rng(seed).uniform(-4, 4, size=(len(SIZES) + 1, width))
    return (rows * np.array([*SIZES, 0])[:, None]).astype(np.float32)


def divisors(rows: np.ndarray) -> np.ndarray:
    """Return the largest number of each row, float64 [n, 1], or 1."""
    largest = np.abs(rows).max(axis=1, keepdims=True).astype(np.float64)
    return np.where(largest > 0, largest, 1)


def rounded(exact: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        return exact.astype(np.float32)


@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "manhattan"])
@pytest.mark.parametrize("sizes", [slice(None), slice(3, 5), slice(6, 7), slice(-4, None), slice(0, 3)])
def test_vectors_of_any_norm_are_compared(similarity: Similarity, sizes: slice) -> None:
    """Float32 overflows at 3e38 and loses digits below 1e-38, and so do squares of numbers beyond 1e19 and 1e-19."""
    first, second = sized()[sizes], sized(1)[sizes]
    got = similarity_matrix(first, second, similarity)
    if similarity == "cosine":  # scikit-learn takes norms below 2e-15 for zero
        want = rounded(wanted(*(rows.astype(np.float64) / divisors(rows) for rows in (first, second)), "cosine"))
    else:
        want = rounded(wanted(first, second, similarity))
    assert got.dtype == np.float32
    bound = 1e-6 if similarity == "cosine" else 1e-6 * np.abs(want)
    infinite = np.isinf(want)
    np.testing.assert_array_equal(got[infinite], want[infinite])
    off = np.abs(got[~infinite].astype(np.float64) - want[~infinite])
    assert (off <= np.broadcast_to(bound + 1e-44, want.shape)[~infinite]).all()
    pairs = row_similarities(first, second, similarity)
    np.testing.assert_allclose(pairs, np.diag(want), rtol=1e-5, atol=1e-6 if similarity == "cosine" else 1e-44)


SCALES = (0, 1e-44, 1e-30, 1e-12, 1.0, 1e12, 1e18, 1e19, 1e37, np.inf, np.nan)


@st.composite
def mixed(draw: st.DrawFn) -> np.ndarray:
    """Draw rows of any mix of sizes, among them zeros and rows that are not finite, of any layout in memory."""
    sizes = np.array(draw(st.lists(st.sampled_from(SCALES), min_size=1, max_size=9)))
    rows = np.random.default_rng(draw(st.integers(0, 99))).uniform(-4, 4, size=(len(sizes), draw(st.integers(1, 70))))
    with np.errstate(invalid="ignore"):
        return np.asarray(rows * sizes[:, None], np.float32, order=draw(st.sampled_from("CF")))


@settings(max_examples=300, deadline=None)
@given(mixed())
def test_a_unit_does_not_depend_on_the_other_rows(rows: np.ndarray) -> None:
    units = unit(rows)
    assert units.dtype == np.float32
    cosines, other = row_cosines(rows, rows[:, ::-1]), rows[:, ::-1]
    for index in range(len(rows)):
        np.testing.assert_array_equal(units[index], unit(rows[index : index + 1])[0])
        alone = row_cosines(rows[index : index + 1], other[index : index + 1])
        np.testing.assert_array_equal(cosines[index], alone[0])


@pytest.mark.parametrize("numbers", [[[1, 2]], np.array([[1, 2]]), np.array([[1, 2]], np.uint16)])
def test_wider_whole_numbers_are_vectors(numbers: object) -> None:
    rows = rows_of("a", numbers)  # type: ignore[arg-type]
    assert (rows.dtype, rows.tolist()) == (np.float32, [[1, 2]])


AXES = np.concatenate([np.eye(4, dtype=np.float32), -np.eye(4, dtype=np.float32), np.zeros((1, 4), np.float32)])
"""Rows whose cosines with (3, 4, 0, 0) / 5 are exact: 0.6, 0.8, their negatives and 0."""

CHOICES = st.lists(st.integers(0, len(AXES) - 1), max_size=40)


@settings(max_examples=300, deadline=None)
@given(CHOICES, st.integers(1, 5), st.integers(1, 45), st.lists(st.integers(0, 40), max_size=6), st.integers(1, 4))
def test_ties_are_broken_by_the_number_of_the_row_however_rows_and_queries_are_cut(
    choices: list[int], queries: int, top: int, cuts: list[int], at_once: int
) -> None:
    first = np.resize(np.array([[3, 4, 0, 0], [0, 0, 0, 0], [0, 0, 4, -3]], np.float32), (queries, 4))
    rows = AXES[choices]
    found, ends = Nearest.empty(queries), sorted({0, *cuts, len(rows)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearest, "_ROWS_PER_BLOCK", at_once)
        for start, end in pairwise(ends):
            found = found.add(first, rows[start:end], start, top)
    every = (first / 5) @ rows.T
    order = np.lexsort((np.broadcast_to(np.arange(len(rows)), every.shape), -every), axis=1)[:, :top]
    np.testing.assert_array_equal(found.rows, order)
    np.testing.assert_array_equal(found.cosines, np.take_along_axis(every, order, axis=1))


def test_no_queries_have_no_rows() -> None:
    rows = np.eye(2, dtype=np.float32)
    assert Nearest.empty(0).add(rows[:0], rows, 0, 2).rows.shape == (0, 0)


PRECISIONS = [precision for precision in get_args(VectorPrecision) if precision != "float32"]


def unexpected() -> np.ndarray:
    raise AssertionError("the bundle's ranges were read")


def made(precision: Any, ranges: Any, width: int) -> Quantizer:
    found = Quantizer.of(precision, ranges, width, unexpected)
    assert found is not None
    return found


def test_what_is_outside_is_clipped() -> None:
    ranges = np.array([[-1, 5], [1, 5]], np.float32)
    far = np.array([[-3e38, -3e38], [3e38, 3e38], [1.01, 5.5]], np.float32)
    assert made("uint8", ranges, 2)(far).tolist() == [[0, 0], [255, 255], [255, 0]]
    assert made("int8", ranges, 2)(far).tolist() == [[-128, -128], [127, 127], [127, -128]]


@pytest.mark.parametrize(
    ("precision", "ranges", "named"),
    [
        (None, None, "precision"),
        ("binary", [[0, 0], [1, 1]], "binary"),
        ("int8", [[0], [1]], r"\[2, 1\]"),
        ("int8", [0, 1], r"\[2\]"),
        *(
            ("int8", [[0, lower], [1, upper]], r"ranges\[:, 1\]")
            for lower, upper in ((1, 0), (0, np.nan), (-np.inf, 0), (-3e38, 3e38))
        ),
    ],
)
def test_what_cannot_be_used_is_refused(precision: Any, ranges: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Quantizer.of(precision, ranges, 2, unexpected)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_have_no_code(precision: str, bad: float) -> None:
    quantize = made(precision, [[0], [1]] if precision.endswith("int8") else None, 1)
    with pytest.raises(TextError, match=precision):
        quantize(np.array([[0], [bad]], np.float32))
    with pytest.raises(TextError, match="ranges"):
        made("int8", [["a"], ["b"]], 1)


@given(arrays(np.float32, (20, 5), elements=st.floats(-1e3, 1e3, width=32)))
def test_cosines_are_from_minus_one_to_one(rows: np.ndarray) -> None:
    both = np.concatenate([rows, -rows, 3 * rows])
    for cosines in (similarity_matrix(both, both, "cosine"), row_similarities(both, both[::-1], "cosine")):
        assert (np.abs(cosines) <= 1).all()
    assert np.isfinite(np.arccos(similarity_matrix(rows, rows, "cosine"))).all()
