"""Test vectors of whole numbers from -127 to 127, with one scale each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from whiten_runtime.bundle.ranges import as_int8, to_steps
from whiten_runtime.errors import UsageError

FLOATS = st.floats(-(2.0**100), 2.0**100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-20)
ROWS = arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=FLOATS)


@given(ROWS)
def test_the_largest_magnitude_becomes_127_and_directions_stay(rows: np.ndarray) -> None:
    exact = to_steps(rows)
    assert exact.dtype == np.float64
    for row, steps in zip(rows.astype(np.float64), exact, strict=True):
        if row.any():
            assert np.abs(steps).max() == pytest.approx(127)
            np.testing.assert_allclose(steps / 127 * np.abs(row).max(), row, rtol=1e-12)
        else:
            assert not steps.any()


@given(ROWS)
def test_whole_numbers_become_int8_without_loss(rows: np.ndarray) -> None:
    whole = np.rint(to_steps(rows)).astype(np.float32)
    found = as_int8(whole)
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, whole)
    np.testing.assert_array_equal(as_int8(whole[0]), whole[0])
    assert as_int8(found) is found


@pytest.mark.parametrize("value", [0.5, 126.9999, 128.0, -128.0, 1e9, np.nan, np.inf, -np.inf])
def test_other_numbers_are_refused(value: float) -> None:
    with pytest.raises(
        UsageError, match=r"int8 takes whole numbers from -127 to 127.*--vector-type int8, not normalised"
    ):
        as_int8(np.array([[127.0, 1.0], [127.0, value]], np.float32))
