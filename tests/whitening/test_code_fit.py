"""Test whether codes are said to fit, on vectors whose distance from the corpus is known."""

import numpy as np
import pytest

from whiten import Coder
from whiten_whitening.codes.fit import code_fit, in_words

WIDTH = 24


def corpus(n: int, seed: int, shift: float = 0.0, factor: float = 1.0) -> np.ndarray:
    """Normal vectors; a shift, and a factor of the spread, of the trailing half of the dimensions."""
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(n, WIDTH)) * np.geomspace(2, 0.4, WIDTH)
    vectors[:, WIDTH // 2 :] *= factor
    return vectors + shift * np.r_[np.zeros(WIDTH // 2), np.ones(WIDTH // 2)]


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize(("shift", "factor", "fits"), [(0.0, 1.0, True), (4.0, 0.3, False), (0.2, 1.1, True)])
def test_predicted_noise_is_the_measured_one(bits: int, shift: float, factor: float, fits: bool) -> None:
    coder = Coder.fit(corpus(20000, 0), bits, None)
    other = corpus(20000, 1, shift, factor)
    found = code_fit(coder, other.mean(axis=0), np.cov(other.T))
    exact, decoded = coder.transform(other), coder.decode(coder.encode(other))
    measured = np.square(exact - decoded).sum(axis=1).mean() / exact.var(axis=0).sum()
    assert found.noise == pytest.approx(measured, rel=0.25)
    assert found.fits == fits
    assert ("no longer fit" in in_words([found])) is not fits
    assert "\n" not in in_words([found])
