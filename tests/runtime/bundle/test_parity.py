import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics.pairwise import paired_cosine_distances

from whiten_runtime.bundle.manifest import Precision
from whiten_runtime.bundle.parity import GATES, Agreement, compare

MATRICES = arrays(np.float64, (5, 7), elements=st.floats(-10, 10).map(lambda x: x if abs(x) > 1e-3 else 0))


@given(MATRICES, MATRICES)
def test_agreement_equals_scikit_learn(got: np.ndarray, want: np.ndarray) -> None:
    got[:, 0] = want[:, 0] = 1  # no zero vectors
    agreement = compare(got, want)
    cosines = 1 - paired_cosine_distances(got, want)
    assert agreement.min_cosine == pytest.approx(cosines.min(), abs=1e-12)
    assert agreement.mean_cosine == pytest.approx(cosines.mean(), abs=1e-12)
    difference = (np.abs(got - want).max(axis=1) / np.linalg.norm(want, axis=1)).max()
    assert agreement.max_difference == pytest.approx(difference)


@given(MATRICES, MATRICES)
def test_errors_of_norms_equal_the_definition(got: np.ndarray, want: np.ndarray) -> None:
    want[:, 0] = 1  # no zero vectors
    agreement = compare(got, want)
    errors = np.abs(np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1) - 1)
    assert agreement.max_norm_error == pytest.approx(errors.max(), abs=1e-12)
    assert agreement.mean_norm_error == pytest.approx(errors.mean(), abs=1e-12)


def scaled(*errors: float) -> Agreement:
    """Compare vectors with others of the same directions, whose norms are off by these shares."""
    want = np.random.default_rng(0).normal(size=(len(errors), 16))
    return compare(want * (1 + np.array(errors)[:, None]), want)


@pytest.mark.parametrize(
    ("precision", "passing", "failing"),
    [
        ("fp16", (0.019, -0.019), (0.021, 0)),
        ("int8", (0.099, -0.04, 0, 0), (0.101, -0.04, 0, 0)),
        ("int8", (0.019, 0.019), (0.021, 0.021)),
        ("int8", (-0.019, -0.019), (-0.021, -0.021)),
        ("int8", (0.049, -0.049), (0.051, -0.051)),
    ],
)
def test_norms_are_bounded_where_rounding_may_scale_vectors(
    precision: Precision, passing: tuple[float, ...], failing: tuple[float, ...]
) -> None:
    assert GATES[precision].passes(scaled(*passing))
    assert not GATES[precision].passes(scaled(*failing))
    assert scaled(*failing).min_cosine == pytest.approx(1)


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_wrong_scale_fails_beside_the_errors_of_rounding(precision: Precision, factor: float) -> None:
    """Norms of real int8 bundles are off by 1 % on average and 4 % at worst."""
    errors = np.random.default_rng(0).normal(scale=0.012, size=79)
    assert GATES["int8"].passes(scaled(*errors))
    assert not GATES[precision].passes(scaled(*((1 + errors) * factor - 1)))


def test_norms_of_zero_vectors_are_equal_to_those_of_zero_vectors_only() -> None:
    zero, other = np.zeros((2, 3)), np.array([[0, 0, 0], [0, 0, 1e-9]])
    assert compare(zero, zero).max_norm_error == compare(zero, zero).mean_norm_error == 0
    assert all(gate.passes(compare(zero, zero)) for gate in GATES.values())
    assert compare(other, zero).max_norm_error == np.inf
    assert compare(zero, other).max_norm_error == 1
    assert not any(gate.passes(compare(other, zero)) or gate.passes(compare(zero, other)) for gate in GATES.values())


def test_cosines_near_one_keep_their_digits() -> None:
    want = np.ones((1, 4))
    got = want + np.array([1e-9, -1e-9, 0, 0])
    assert 1 - compare(got, want).min_cosine == pytest.approx(2.5e-19, abs=1e-16)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nonfinite_vectors_never_pass(bad: float) -> None:
    want = np.ones((3, 4))
    got = want.copy()
    got[1, 2] = bad
    with np.errstate(invalid="ignore"):
        assert not any(gate.passes(compare(got, want)) for gate in GATES.values())


def test_one_wrong_coordinate_fails_the_gate() -> None:
    want = np.random.default_rng(0).normal(size=(50, 384))
    got = want.copy()
    got[31, 5] += 2e-4 * np.linalg.norm(want[31])
    assert not GATES["fp32"].passes(compare(got, want))


@pytest.mark.parametrize("shape", [(0, 3), (3,), (2, 2)])
def test_empty_and_unequal_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="wanted two equal"):
        compare(np.ones(shape), np.ones((0, 3)) if shape == (0, 3) else np.ones((3, 3)))
