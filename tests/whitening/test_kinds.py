"""Test the check of a whitening on kinds of text that it was not fitted on."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from support.vector_sets import anisotropic
from whiten_whitening.choosing import check_kinds, likeliest_weight
from whiten_whitening.isotropy import Spread, average_cosine
from whiten_whitening.maps import WhiteningSpec, fit_map
from whiten_whitening.moments import Moments

CORPUS = anisotropic(3000, 12)
MOMENTS = Moments.of(CORPUS)


def test_a_kind_like_the_corpus_is_not_hurt_and_one_elsewhere_is() -> None:
    fitted = fit_map(MOMENTS)
    far = CORPUS[:200] @ np.diag(np.linspace(0.01, 3, 12)[::-1]) + 40
    like, unlike = check_kinds(fitted, {"like": Moments.of(CORPUS[:500]), "unlike": Moments.of(far)})
    assert (like.kind, like.hurt, unlike.kind, unlike.hurt) == ("like", False, "unlike", True)
    assert like.after.iso_score > 0.9 > like.before.iso_score
    assert unlike.after.average_cosine > 0.37


@pytest.mark.parametrize("moved", [0, 30])
def test_a_rotation_hurts_nothing(moved: float) -> None:
    fitted = fit_map(MOMENTS, WhiteningSpec(beta=0))
    (found,) = check_kinds(fitted, {"same": Moments.of(CORPUS + moved)})
    assert found.before.iso_score == pytest.approx(found.after.iso_score)
    assert (found.after.average_cosine > 0.37) == bool(moved)
    assert not found.hurt


def test_spread_is_close_to_the_mean_cosine_of_pairs() -> None:
    vectors = CORPUS + 3
    moments = Moments.of(vectors)
    spread = Spread.of(moments.mean, moments.covariance)
    assert spread.average_cosine == pytest.approx(average_cosine(moments), abs=0.05)
    assert Spread.of(np.zeros(2), np.zeros((2, 2))) == Spread(1.0, 0.0)


def test_the_weight_is_that_of_the_highest_likelihood() -> None:
    generator = np.random.default_rng(0)
    kinds = {"a": generator.normal(size=(80, 12)) * 2, "b": generator.normal(size=(60, 12)) + 1}
    weights = (0.1, 0.3, 0.5, 0.7, 0.9)
    covariance = MOMENTS.covariance
    scores = []
    for weight in weights:
        shrunk = (1 - weight) * covariance + weight * np.trace(covariance) / 12 * np.eye(12)
        normal = multivariate_normal(MOMENTS.mean, shrunk)
        scores.append(np.mean([normal.logpdf(rows).mean() for rows in kinds.values()]))
    found = likeliest_weight(MOMENTS, {kind: Moments.of(rows) for kind, rows in kinds.items()}, weights)
    assert found == weights[int(np.argmax(scores))]
