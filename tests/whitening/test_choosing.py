"""Test whether a map does harm."""

import numpy as np
import pytest

from support.vectors import anisotropic
from whiten_whitening.maps import WhiteningMap, WhiteningSpec, fit_map
from whiten_whitening.measures import Spread, average_cosine
from whiten_whitening.moments import Moments

CORPUS = anisotropic(3000, 12)
MOMENTS = Moments.of(CORPUS)


def test_spread_is_close_to_the_mean_cosine_of_pairs() -> None:
    vectors = CORPUS + 3
    moments = Moments.of(vectors)
    spread = Spread.of(moments.mean, moments.covariance)
    assert spread.average_cosine == pytest.approx(average_cosine(moments), abs=0.05)
    assert Spread.of(np.zeros(2), np.zeros((2, 2))) == Spread(1.0, 0.0)


@pytest.mark.parametrize("moved", [0, 30])
def test_a_rotation_hurts_nothing(moved: float) -> None:
    raw = Moments.of(CORPUS + moved)
    fitted = fit_map(Moments.of(CORPUS), WhiteningSpec(beta=0))
    turned = raw.affine(fitted.mean, fitted.weight)
    before, after = (Spread.of(moments.mean, moments.covariance) for moments in (raw, turned))
    assert before.iso_score == pytest.approx(after.iso_score)
    assert not before.hurt_by(after, rescales=False)


def test_vectors_like_the_corpus_are_not_hurt_and_others_are() -> None:
    fitted, plain = fit_map(MOMENTS), fit_map(MOMENTS, WhiteningSpec(beta=0))
    far = CORPUS[:200] @ np.diag(np.linspace(0.01, 3, 12)[::-1]) + 40

    def spreads(vectors: np.ndarray, fitted: WhiteningMap) -> tuple[Spread, Spread]:
        raw = Moments.of(vectors)
        white = raw.affine(fitted.mean, fitted.weight)
        return Spread.of(raw.mean, raw.covariance), Spread.of(white.mean, white.covariance)

    before, after = spreads(CORPUS[:500], fitted)
    assert after.iso_score > 0.9 > before.iso_score
    assert not before.hurt_by(after)
    before, after = spreads(far, fitted)
    assert after.average_cosine > 0.37
    assert before.hurt_by(after)
    for moved in (0, 30):  # a rotation hurts nothing
        before, after = spreads(CORPUS + moved, plain)
        assert before.iso_score == pytest.approx(after.iso_score)
        assert (after.average_cosine > 0.37) == bool(moved)
        assert not before.hurt_by(after, rescales=False)
