"""Test quantised vectors in numbers; tests/parity compares them with those of sentence-transformers."""

from typing import Any, get_args

import numpy as np
import pytest

from whiten_runtime.bundle.records import VectorPrecision
from whiten_runtime.errors import TextError, UsageError
from whiten_runtime.inference.vectors import Quantizer

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


def test_signs_are_packed_from_the_first_on_with_zeros_behind() -> None:
    signs = np.array([[1, -1, 1, 0, 1, 1, -1, 1, 1]], np.float32)
    assert made("ubinary", None, 9)(signs).tolist() == [[0b10101101, 0b10000000]]
    assert made("binary", None, 9)(signs).tolist() == [[0b10101101 - 128, 0]]


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
