"""Test quantised vectors against definitions that are written out, and that none depends on its neighbours."""

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from whiten_runtime.bundle.records import VectorPrecision
from whiten_runtime.errors import TextError, UsageError
from whiten_runtime.inference.vectors import Quantizer

NUMBERS = st.floats(-100, 100, width=32)
PRECISIONS = [precision for precision in get_args(VectorPrecision) if precision != "float32"]


def unexpected() -> np.ndarray:
    raise AssertionError("the bundle's ranges were read")


def made(precision: Any, ranges: Any, width: int) -> Quantizer:
    found = Quantizer.of(precision, ranges, width, unexpected)
    assert found is not None
    return found


@st.composite
def vectors_and_ranges(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    rows, width = draw(st.integers(0, 6)), draw(st.integers(1, 20))
    vectors = draw(arrays(np.float32, (rows, width), elements=NUMBERS))
    ends = draw(arrays(np.float32, (2, width), elements=NUMBERS))
    return vectors, np.sort(ends, axis=0)


@settings(deadline=None)
@given(vectors_and_ranges())
def test_levels_are_those_of_the_definition(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, ranges = drawn
    unsigned, signed = (made(precision, ranges, vectors.shape[1])(vectors) for precision in ("uint8", "int8"))
    assert (unsigned.dtype, signed.dtype, unsigned.shape, signed.shape) == (
        np.uint8, np.int8, vectors.shape, vectors.shape,
    )  # fmt: skip
    np.testing.assert_array_equal(signed.astype(int), unsigned.astype(int) - 128)
    steps = (ranges[1] - ranges[0]) / np.float32(255)
    for row, levels in zip(vectors, unsigned, strict=True):
        for number, start, step, level in zip(row, ranges[0], steps, levels, strict=True):
            with np.errstate(over="ignore"):
                exact = np.floor((number - start) / (step or np.float32(1)))
            assert level == min(max(exact, 0), 255)


@settings(deadline=None)
@given(arrays(np.float32, st.tuples(st.integers(0, 6), st.integers(1, 20)), elements=NUMBERS))
def test_signs_are_packed_from_the_first_on(vectors: np.ndarray) -> None:
    unsigned, signed = (made(precision, None, vectors.shape[1])(vectors) for precision in ("ubinary", "binary"))
    shape = (len(vectors), -(-vectors.shape[1] // 8))
    assert (unsigned.dtype, signed.dtype, unsigned.shape, signed.shape) == (np.uint8, np.int8, shape, shape)
    np.testing.assert_array_equal(signed.astype(int), unsigned.astype(int) - 128)
    for row, codes in zip(vectors, unsigned, strict=True):
        bits = "".join("1" if number > 0 else "0" for number in row).ljust(8 * shape[1], "0")
        assert "".join(f"{code:08b}" for code in codes) == bits


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(deadline=None, max_examples=30)
@given(drawn=vectors_and_ranges())
def test_a_vector_does_not_depend_on_its_neighbours(precision: str, drawn: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, ranges = drawn
    quantize = made(precision, ranges if precision in ("int8", "uint8") else None, vectors.shape[1])
    together = quantize(vectors)
    for index in range(len(vectors)):
        np.testing.assert_array_equal(quantize(vectors[index : index + 1])[0], together[index])


def test_what_is_outside_is_clipped() -> None:
    ranges = np.array([[-1, 5], [1, 5]], np.float32)
    far = np.array([[-3e38, -3e38], [3e38, 3e38], [1.01, 5.5]], np.float32)
    assert made("uint8", ranges, 2)(far).tolist() == [[0, 0], [255, 255], [255, 0]]
    assert made("int8", ranges, 2)(far).tolist() == [[-128, -128], [127, 127], [127, -128]]


def test_float32_needs_no_quantizer_and_reads_no_ranges() -> None:
    assert Quantizer.of("float32", None, 3, unexpected) is None
    stored = np.array([[-1], [1]], np.float32)
    found = Quantizer.of("int8", None, 1, lambda: stored)
    assert found is not None
    assert found(np.array([[0]], np.float32)).tolist() == [[-1]]


@pytest.mark.parametrize(
    ("precision", "ranges", "message"),
    [
        (None, None, "precision is None"),
        ("binary", [[0, 0], [1, 1]], "ranges are for precision int8 and uint8, not binary"),
        ("int8", [[0], [1]], r"ranges have shape \[2, 1\]; wanted \[2, 2\]"),
        ("int8", [0, 1], r"ranges have shape \[2\]"),
        ("int8", [[0, 1], [1, 0]], r"ranges\[:, 1\] are 1.0 and 0.0; wanted finite numbers, the lower first"),
        ("int8", [[0, 0], [1, np.nan]], r"ranges\[:, 1\] are 0.0 and nan"),
        ("int8", [[0, -np.inf], [1, 0]], r"ranges\[:, 1\] are -inf and 0.0"),
        ("int8", [[0, -3e38], [1, 3e38]], r"ranges\[:, 1\] are -"),
    ],
)
def test_what_cannot_be_used_is_refused(precision: Any, ranges: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Quantizer.of(precision, ranges, 2, unexpected)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_have_no_code(precision: str, bad: float) -> None:
    quantize = made(precision, [[0], [1]] if precision.endswith("int8") else None, 1)
    with pytest.raises(TextError, match=f"a vector is not finite and has no {precision}"):
        quantize(np.array([[0], [bad]], np.float32))
    with pytest.raises(TextError, match="ranges are not numbers in rows"):
        made("int8", [["a"], ["b"]], 1)
