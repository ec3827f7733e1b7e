"""Compute the weight α of shrinkage, which moves a covariance towards the identity: Σ' = (1 - α) Σ + α tr(Σ)/d I.

All estimators use moments, so none needs the vectors a second time. Eigenvectors do not change.
"""

import numpy as np

from whiten_runtime.errors import UsageError
from whiten_whitening.moments import Moments

Shrinkage = str | float

ESTIMATORS = ("none", "ledoit-wolf", "oas")


def check_shrinkage(shrinkage: Shrinkage) -> None:
    """Raise UsageError unless it is one of `ESTIMATORS` or a number from 0 to 1."""
    number = isinstance(shrinkage, int | float) and not isinstance(shrinkage, bool) and 0 <= shrinkage <= 1
    if not number and shrinkage not in ESTIMATORS:
        raise UsageError(f"shrinkage is {shrinkage!r}; wanted {', '.join(ESTIMATORS)}, or a number from 0 to 1")


def parse_shrinkage(text: str) -> Shrinkage:
    """Parse the name of an estimator, or a number.

    Raises:
        UsageError: the text is neither.
    """
    try:
        value: Shrinkage = float(text)
    except ValueError:
        value = text
    check_shrinkage(value)
    return value


def check_for_sif(shrinkage: Shrinkage) -> None:
    """Raise UsageError for an estimator that needs more than is known after common components are removed."""
    if shrinkage == "ledoit-wolf":
        raise UsageError(
            "shrinkage 'ledoit-wolf' needs the vectors' fourth moment, which is not known once common components are "
            "taken away (sif); use oas, or a number"
        )


def shrinkage_weight(moments: Moments, shrinkage: Shrinkage) -> float:
    """Return α, from 0 to 1.

    Raises:
        UsageError: Ledoit and Wolf's estimator needs the sum of |z|⁴, which these moments do not have.
    """
    if not isinstance(shrinkage, str):
        return float(shrinkage)
    return {"none": lambda _: 0.0, "ledoit-wolf": ledoit_wolf, "oas": oas}[shrinkage](moments)


def ledoit_wolf(moments: Moments) -> float:
    """Return the α of Ledoit & Wolf, "A well-conditioned estimator for large-dimensional covariance matrices" (2004).

    Section 3.3, exact from moments: Σᵢ |xᵢxᵢᵀ - S|² = Σᵢ |xᵢ|⁴ - n |S|² for centred xᵢ and S = Σᵢ xᵢxᵢᵀ / n.

    Raises:
        UsageError: the moments lack Σ |z|⁴.
    """
    if not np.isfinite(moments.fourth):
        check_for_sif("ledoit-wolf")
    n, d = moments.n, len(moments.mean)
    S = moments.scatter / n
    square, scale = float(np.square(S).sum()), float(np.trace(S)) / d
    spread = square - d * scale**2
    noise = min((moments.fourth / n - square) / n, spread)
    return noise / spread if noise > 0 else 0.0


def oas(moments: Moments) -> float:
    """Return the α of the oracle approximating shrinkage.

    Chen et al., "Shrinkage algorithms for MMSE covariance estimation" (2010), eq. 23, in the form that scikit-learn
    uses: without the terms of order 1/d.
    """
    n, d = moments.n, len(moments.mean)
    S = moments.scatter / n
    square, trace = float(np.square(S).mean()), (float(np.trace(S)) / d) ** 2
    denominator = (n + 1) * (square - trace / d)
    return 1.0 if denominator <= 0 else min((square + trace) / denominator, 1.0)
