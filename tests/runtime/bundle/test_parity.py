import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics.pairwise import paired_cosine_distances

from whiten_runtime.bundle.parity import GATES, compare

MATRICES = arrays(np.float64, (5, 7), elements=st.floats(-10, 10).filter(lambda x: x == 0 or abs(x) > 1e-3))


@given(MATRICES, MATRICES)
def test_agreement_equals_scikit_learn(got: np.ndarray, want: np.ndarray) -> None:
    got[:, 0] = want[:, 0] = 1  # no zero vectors
    agreement = compare(got, want)
    cosines = 1 - paired_cosine_distances(got, want)
    assert agreement.min_cosine == pytest.approx(cosines.min(), abs=1e-12)
    assert agreement.mean_cosine == pytest.approx(cosines.mean(), abs=1e-12)
    difference = (np.abs(got - want).max(axis=1) / np.linalg.norm(want, axis=1)).max()
    assert agreement.max_difference == pytest.approx(difference)


def test_cosines_near_one_keep_their_digits() -> None:
    want = np.ones((1, 4))
    got = want + np.array([1e-9, -1e-9, 0, 0])
    assert 1 - compare(got, want).min_cosine == pytest.approx(2.5e-19, abs=1e-16)


def test_zero_vectors_match_zero_vectors_only() -> None:
    zero = np.zeros((1, 3))
    assert GATES["fp32"].passes(compare(zero, zero))
    assert not GATES["fp32"].passes(compare(zero + 1e-9, zero))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nonfinite_vectors_never_pass(bad: float) -> None:
    want = np.ones((3, 4))
    got = want.copy()
    got[1, 2] = bad
    with np.errstate(invalid="ignore"):
        assert not GATES["fp32"].passes(compare(got, want))


def test_one_wrong_coordinate_fails_the_gate() -> None:
    want = np.random.default_rng(0).normal(size=(50, 384))
    got = want.copy()
    got[31, 5] += 2e-4 * np.linalg.norm(want[31])
    assert not GATES["fp32"].passes(compare(got, want))


@pytest.mark.parametrize("shape", [(0, 3), (3,), (2, 2)])
def test_empty_and_unequal_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="wanted two equal"):
        compare(np.ones(shape), np.ones((0, 3)) if shape == (0, 3) else np.ones((3, 3)))
