from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics.pairwise import paired_cosine_distances

from whiten_runtime.bundle.parity import GATES, Agreement, compare, compare_finished, gate_of, in_words
from whiten_runtime.bundle.records import ParityRecord, Precision
from whiten_runtime.errors import ParityError

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


def test_agreements_and_gates_name_the_norm_in_words() -> None:
    assert "worst norm 2.1e-02 off, 1 vectors, norms 1.021 times as long on average" in str(scaled(0.021))
    assert "on average, 1 -" in str(scaled(0.1, -0.1))
    assert "times as long" not in str(scaled(0.1, -0.1))
    older = ParityRecord(reference="torch", vectors=1, min_cosine=1, mean_cosine=1, max_difference=0)
    assert "norm 0" not in in_words(older)
    assert in_words(older).endswith("worst difference 0.0e+00 of the norm, 1 vectors")
    assert str(GATES["int8"]) == "cosine >= 0.98, 0.99 on average, norm within 10%, 5% on average, 2% of all together"
    assert str(GATES["fp16"]) == "cosine >= 0.9999, norm within 2%"
    assert str(GATES["fp32"]) == "cosine >= 0.999999, difference <= 0.0001 of the norm"


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


def rounded(exact: np.ndarray) -> np.ndarray:
    return np.rint(exact / np.abs(exact).max(axis=1, keepdims=True) * 127)


RANDOM = np.random.default_rng(0).normal(size=(50, 384))


def test_int8_vectors_are_compared_beyond_their_rounding() -> None:
    found = compare_finished("int8", rounded(RANDOM), RANDOM)
    assert (found.max_difference, found.stepped, found.max_norm_error, found.mean_norm_error) == (0, 0, None, None)
    # A uniform error of a step has the variance 1/12: 1 - cosine is half of that over the mean square.
    exact = RANDOM / np.abs(RANDOM).max(axis=1, keepdims=True) * 127
    assert 1 - found.mean_cosine == pytest.approx(1 / 24 * np.mean(384 / np.square(exact).sum(axis=1)), rel=0.05)
    assert gate_of("fp32", "int8").passes(found)
    assert "0.0e+00 of the norm beyond rounding, 0.0e+00 of the coordinates rounded otherwise, 50" in in_words(found)


@given(st.integers(0, 49), st.integers(0, 383), st.sampled_from([-1, 1]))
def test_a_wrong_step_fails_the_gate_of_int8_vectors(row: int, column: int, step: int) -> None:
    """A step beyond the nearest one is at least half a step away: some 1e-3 of the norm of 384 coordinates."""
    exact = RANDOM / np.abs(RANDOM).max(axis=1, keepdims=True) * 127
    got = rounded(RANDOM)
    got[row, column] = np.rint(exact[row, column]) + step
    far = abs(got[row, column] - exact[row, column]) - 0.5
    if np.abs(got[row]).max() != 127:  # the largest coordinate itself, or one beyond it
        with pytest.raises(ParityError, match="largest magnitude is 127"):
            compare_finished("int8", got, RANDOM)
        return
    found = compare_finished("int8", got, RANDOM)
    assert found.max_difference == pytest.approx(far / np.linalg.norm(exact[row]))
    assert found.stepped == pytest.approx(1 / RANDOM.size)
    near = far <= 1e-4 * np.linalg.norm(exact[row])
    assert gate_of("fp32", "int8").passes(found) == near
    assert found.stepped <= 0.01


def test_float32_that_lies_at_a_boundary_may_round_to_either_step() -> None:
    reference = np.array([[2.0, 1.0, -1.0] * 40])  # 1 is 63.5 steps
    for other in (63, 64):
        got = np.array([[127.0, other, -64.0] * 40])
        found = compare_finished("int8", got, reference)
        assert found.max_difference == 0
        assert gate_of("fp32", "int8").passes(found) == (other == 64)  # a third of all coordinates is too large a share
    assert gate_of("int8", "int8").passes(compare_finished("int8", got, reference))


@pytest.mark.parametrize("wrong", [lambda x: x / 127, lambda x: x * 2, lambda x: x / 2, lambda x: x + 0.25])
def test_vectors_that_are_no_whole_numbers_up_to_127_are_refused(wrong: Callable[[np.ndarray], np.ndarray]) -> None:
    with pytest.raises(ParityError, match="not of whole numbers whose largest magnitude is 127"):
        compare_finished("int8", wrong(rounded(RANDOM)), RANDOM)


def test_nonfinite_and_zero_int8_vectors_pass_only_where_they_should() -> None:
    zero, bad = np.zeros((1, 3)), np.full((1, 3), np.nan)
    assert gate_of("fp32", "int8").passes(compare_finished("int8", zero, zero))
    for got, want in ((zero, np.ones((1, 3))), (np.array([[127, 0, 0]]), zero), (bad, np.ones((1, 3))), (bad, bad)):
        with np.errstate(invalid="ignore"):
            found = compare_finished("int8", got, want)
        assert not any(gate_of(precision, "int8").passes(found) for precision in GATES)


def test_gates_of_int8_vectors_bound_no_length() -> None:
    assert str(gate_of("fp32", "int8")) == (
        "cosine >= 0.998999, difference <= 0.0001 of the norm, 1% of the coordinates rounded otherwise"
    )
    assert str(gate_of("int8", "int8")) == "cosine >= 0.979, 0.989 on average"
    assert all(gate_of(precision, "float32") is gate for precision, gate in GATES.items())
    assert not GATES["fp16"].passes(compare_finished("int8", rounded(RANDOM), RANDOM))  # lengths were not measured


def test_float32_vectors_are_compared_as_they_are() -> None:
    assert compare_finished("float32", RANDOM, RANDOM) == compare(RANDOM, RANDOM)
