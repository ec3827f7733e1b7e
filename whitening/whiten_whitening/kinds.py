"""Check a whitening on kinds of text other than the one that it was fitted on, without labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from whiten_whitening.isotropy import Spread
from whiten_whitening.linalg import eigh
from whiten_whitening.maps import WhiteningMap
from whiten_whitening.moments import Float64Array, Moments

WEIGHTS = (0.3, 0.5, 0.7)
"""Weights of the shrinkage that are tried."""

_FLOOR = 1e-6
"""Smallest variance of the normal distribution, relative to the largest."""


@dataclass(frozen=True)
class KindCheck:
    """Holds how a map changes the spread of one kind of text.

    Attributes:
        kind: name of the kind.
        before: spread of the vectors before the map.
        after: spread under the map.
        rescales: whether the map divides directions by their spread.
    """

    kind: str
    before: Spread
    after: Spread
    rescales: bool = True

    @property
    def hurt(self) -> bool:
        """Return whether the map does harm to texts of this kind."""
        return self.before.hurt_by(self.after, self.rescales)


def check_kinds(fitted: WhiteningMap, kinds: Mapping[str, Moments]) -> tuple[KindCheck, ...]:
    """Return how a map changes the spread of each kind; `kinds` are the moments of their vectors before the map."""
    found = []
    rescales = fitted.spec is not None and fitted.spec.beta > 0
    for kind, moments in kinds.items():
        mapped = moments.affine(fitted.mean, fitted.weight)
        before = Spread.of(moments.mean, moments.covariance)
        found.append(KindCheck(kind, before, Spread.of(mapped.mean, mapped.covariance), rescales))
    return tuple(found)


def likeliest_weight(moments: Moments, kinds: Mapping[str, Moments], weights: Sequence[float] = WEIGHTS) -> float:
    """Return the weight of the shrinkage under which vectors of all kinds are likeliest.

    The likelihood is that of a normal distribution with the corpus's mean and its covariance, shrunk; each kind counts
    the same.

    Args:
        moments: moments of the corpus's vectors.
        kinds: moments of the vectors of each kind.
        weights: weights to try, from 0 to 1; the first of equal ones is returned.
    """
    eigenvalues, basis = eigh(moments.covariance)
    squares = [_squares(moments, other, basis) for other in kinds.values()]
    scores = []
    for weight in weights:
        shrunk = (1 - weight) * eigenvalues + weight * eigenvalues.mean()
        variances = np.maximum(shrunk, _FLOOR * shrunk.max())
        log = float(np.log(variances).sum())
        scores.append(float(np.mean([-(log + float((square / variances).sum())) / 2 for square in squares])))
    return weights[int(np.argmax(scores))]


def _squares(corpus: Moments, kind: Moments, basis: Float64Array) -> Float64Array:
    """Return the mean square of a kind's vectors along each direction, about the corpus's mean, [d]."""
    shift = (kind.mean - corpus.mean) @ basis
    return np.asarray(np.einsum("dk,de,ek->k", basis, kind.scatter / kind.n, basis, optimize=True) + np.square(shift))
