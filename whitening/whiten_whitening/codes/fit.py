"""Tell from moments whether codes of a few bits fit texts unlike the corpus that a bundle was fitted on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from whiten_runtime.errors import UsageError
from whiten_whitening.codes.coder import Coder
from whiten_whitening.codes.inputs import check_similarity
from whiten_whitening.codes.levels import Bits, expected_noise, outside
from whiten_whitening.drift import DriftMonitor
from whiten_whitening.moments import Float64Array

LARGEST_FACTORS = {4: 5.0, 2: 2.5, 1: 2.0}
"""Noise by bits, relative to that of texts like the corpus, above which codes do not fit.

Chosen on captions against news and Wikipedia, which keep their recall, and German, which loses up to 0.14 with 2 bits:
`benchmarks/codes/table.md`.
"""


@dataclass(frozen=True)
class CodeFit:
    """Holds how well codes fit texts.

    Attributes:
        bits: bits of a coordinate.
        noise: mean squared error of the decoded coordinates, divided by the variance of the coordinates.
        expected: the same for texts like the corpus.
        outside: share of coordinates beyond the outermost level.
    """

    bits: Bits
    noise: float
    expected: float
    outside: float

    @property
    def fits(self) -> bool:
        """Return whether the noise is about that of texts like the corpus."""
        return self.noise <= LARGEST_FACTORS[self.bits] * self.expected


def code_fits(bundle: str | Path, monitor: DriftMonitor) -> tuple[CodeFit, ...]:
    """Compare the vectors that a monitor has seen with the levels of 4, 2 and 1 bits, in all dimensions.

    Returns:
        Nothing for a bundle whose vectors have no codes, because its model needs their norms.

    Raises:
        UsageError: fewer than 2 vectors were seen.
    """
    moments = monitor.output_moments()
    try:
        check_similarity(monitor.manifest)
    except UsageError:
        return ()
    return tuple(code_fit(Coder.of(bundle, bits), *moments) for bits in (4, 2, 1))


def in_words(fits: Sequence[CodeFit]) -> str:
    """Say in one line whether codes fit, with the share of the variance that each number of bits loses."""
    lost = ", ".join(
        f"{fit.bits} bit{'s lose' if fit.bits > 1 else ' loses'} {fit.noise:.1%} (expected {fit.expected:.1%})"
        for fit in fits
    )
    bad = [str(fit.bits) for fit in fits if not fit.fits]
    verdict = f"codes no longer fit these texts (bits: {', '.join(bad)})" if bad else "codes fit these texts"
    return f"{verdict}: of the variance, {lost}; {fits[0].outside:.1%} of the coordinates lie outside of 4 bits"


def code_fit(coder: Coder, mean: Float64Array, covariance: Float64Array) -> CodeFit:
    """Compare vectors, by their moments, with the levels of a coder of less than 8 bits.

    The coordinates are taken to be normal, each with its mean and variance in units of the corpus.

    Args:
        coder: coder of the bundle.
        mean: mean of the bundle's vectors, not normalised, [k].
        covariance: covariance of these, [k, k].
    """
    assert coder.axes is not None
    weight, weights = coder.axes.weight, np.square(coder.axes.scale)
    norm = float(np.sqrt(np.trace(covariance) + mean @ mean))
    means = (mean / norm - coder.axes.mean) @ weight
    variances = np.einsum("ij,ij->j", weight, covariance @ weight) / norm**2
    noise = float(weights @ expected_noise(means, variances, coder.bits))
    usual = expected_noise(np.zeros(1), np.ones(1), coder.bits)[0]
    return CodeFit(
        coder.bits,
        noise / max(float(weights @ variances), np.finfo(np.float64).tiny),
        float(usual),
        float(outside(means, variances, coder.bits).mean()),
    )
