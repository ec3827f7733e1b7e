"""Test the alignment of a new map with an old one."""

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes

from support.vectors import anisotropic
from whiten_export.fit import align, fidelity
from whiten_whitening.maps import WhiteningSpec, fit_map
from whiten_whitening.moments import Moments

VECTORS = anisotropic(4000, 16)
MOMENTS = Moments.of(VECTORS)


def other_corpus() -> np.ndarray:
    """Return vectors like `VECTORS`, stretched a little along each coordinate and moved a little."""
    mean = VECTORS.mean(axis=0)
    return mean + (VECTORS - mean) * np.linspace(0.8, 1.25, 16) + 0.01 * VECTORS.std(axis=0)


def test_the_rotation_is_that_of_scipy() -> None:
    old, new = fit_map(Moments.of(other_corpus())), fit_map(MOMENTS)
    z, y = ((VECTORS - fitted.mean) @ fitted.weight for fitted in (old, new))
    rotation, _ = orthogonal_procrustes(y, z)
    turned = align(new, old.mean, old.weight, MOMENTS)
    np.testing.assert_allclose(turned.weight, new.weight @ rotation, atol=1e-9 * np.abs(new.weight).max())


@pytest.mark.parametrize("kept", [16, 6])
def test_an_aligned_map_is_still_a_whitening(kept: int) -> None:
    spec = WhiteningSpec(dimension=kept)
    old, new = fit_map(Moments.of(other_corpus()), spec), fit_map(MOMENTS, spec)
    turned = align(new, old.mean, old.weight, MOMENTS)
    np.testing.assert_allclose(turned.weight.T @ MOMENTS.covariance @ turned.weight, np.eye(kept), atol=1e-9)
    y, z = ((VECTORS - fitted.mean) @ fitted.weight for fitted in (new, turned))
    np.testing.assert_allclose(z @ z.T, y @ y.T, atol=1e-6)  # no similarity changes


def test_fidelity_tells_aligned_from_unaligned() -> None:
    old, new = fit_map(Moments.of(other_corpus()), WhiteningSpec("zca")), fit_map(MOMENTS)
    turned = align(new, old.mean, old.weight, MOMENTS)
    stored = (VECTORS - old.mean) @ old.weight
    before, after = (fidelity(stored, (VECTORS - fitted.mean) @ fitted.weight) for fitted in (new, turned))
    assert after[0] > 0.7 > before[0]
    assert after[1] > 0.9 > before[1]
    assert fidelity(stored, stored) == (pytest.approx(1), 1.0)
    assert fidelity(stored, np.random.default_rng(0).normal(size=stored.shape))[1] < 0.05


def test_a_text_that_occurs_twice_finds_itself() -> None:
    twice = np.concatenate([VECTORS[:50], VECTORS[:50]])
    assert fidelity(twice, twice)[1] == 1
