"""Test the fast inverse root against whitening by eigenvectors."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from whiten_evaluation.sweep.roots import inverse_root
from whiten_whitening.maps import WhiteningSpec, fit_map
from whiten_whitening.moments import Float64Array, Moments


def with_spectrum(values: Float64Array, seed: int = 0) -> Float64Array:
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))[0]
    return np.asarray((basis * values) @ basis.T)


def cosines(white: Float64Array) -> Float64Array:
    unit = white / np.linalg.norm(white, axis=1, keepdims=True)
    return np.asarray(unit @ unit.T)


@settings(deadline=None, max_examples=100)
@example([3e-10], -0.5, 1.0, 3)  # the largest eigenvalues are close together and hard to separate
@given(
    st.lists(st.sampled_from([0.0, 1e-16, 1e-13, 3e-10, 1e-8, 5e-7, 2e-6]), max_size=6),
    st.floats(-4, 0),
    st.floats(1e-3, 1e3),
    st.integers(0, 5),
)
def test_cosines_equal_fit_map_with_floored_eigenvalues(
    small: list[float], least: float, scale: float, seed: int
) -> None:
    values = np.concatenate([small, np.logspace(least, 0, 40 - len(small))]) * scale
    covariance = with_spectrum(values, seed)
    vectors = np.random.default_rng(seed).standard_normal((50, 40)) @ np.linalg.cholesky(
        covariance + 1e-12 * scale * np.eye(40)
    )
    root = inverse_root(covariance)
    assert root is not None
    fitted = fit_map(Moments.of_covariance(1000, np.zeros(40), covariance), WhiteningSpec())
    white = root(vectors.astype(np.float32))
    np.testing.assert_allclose(cosines(white), cosines(vectors.astype(np.float32) @ fitted.weight), atol=2e-4)


@pytest.mark.parametrize("values", [np.zeros(12), np.r_[np.zeros(11), 1.0], -np.ones(12), np.ones(2), np.ones(1)])
def test_degenerate_covariances_have_no_inverse_root(values: Float64Array) -> None:
    assert inverse_root(with_spectrum(values)) is None
