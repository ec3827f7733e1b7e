"""Test whether a map does harm, the weight of its shrinkage, and when more vectors no longer move a map."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from support.vectors import anisotropic
from whiten_whitening.choosing import (
    COMPARED,
    SETTLED,
    Halves,
    enough_to_tell,
    likeliest_weight,
    movement,
    vectors_needed,
)
from whiten_whitening.isotropy import Spread, average_cosine
from whiten_whitening.maps import WhiteningMap, WhiteningSpec, fit_map
from whiten_whitening.moments import Moments, row_keys

CORPUS = anisotropic(3000, 12)
MOMENTS = Moments.of(CORPUS)


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


WIDTH = 24


def vectors(n: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    spread = np.geomspace(1, 0.1, WIDTH)
    return (generator.standard_normal((n, WIDTH)) * spread + 1).astype(np.float32)


def halves_of(rows: np.ndarray) -> Halves:
    return Halves.empty(WIDTH).add(row_keys(0, len(rows)), rows)


def moved(n: int, spec: WhiteningSpec) -> float:
    halves = halves_of(vectors(n))
    one, other = (fit_map(half, spec) for half in halves.moments)
    return movement((one, other), halves.others)


def test_halves_and_others_are_apart_and_together_all_vectors() -> None:
    rows = vectors(3000)
    halves = halves_of(rows)
    first, second = halves.moments
    np.testing.assert_array_equal(halves.others, rows[:COMPARED].astype(np.float64))
    assert first.n + second.n == 3000 - COMPARED
    assert abs(first.n - second.n) < 200
    both = first.merge(second)
    np.testing.assert_allclose(both.mean, rows[COMPARED:].mean(axis=0, dtype=np.float64), rtol=1e-6)


def test_halves_do_not_depend_on_how_vectors_arrive() -> None:
    rows, keys = vectors(3000), row_keys(0, 3000)
    halves = Halves.empty(WIDTH)
    for start in range(0, 3000, 250):
        halves = halves.add(keys[start : start + 250], rows[start : start + 250])
    whole = halves_of(rows)
    np.testing.assert_array_equal(halves.others, whole.others)
    for got, want in zip(halves.moments, whole.moments, strict=True):
        assert got.n == want.n
        np.testing.assert_allclose(got.scatter, want.scatter, rtol=1e-9, atol=1e-9)


def test_the_square_of_the_movement_falls_as_one_over_the_number_of_vectors() -> None:
    few, many = moved(4000, WhiteningSpec()), moved(16_000, WhiteningSpec())
    assert few / many == pytest.approx(2, rel=0.25)
    assert vectors_needed(4000, 3 * SETTLED) == 36_000
    assert vectors_needed(4000, SETTLED / 3) == 4000


def test_a_turned_map_has_not_moved() -> None:
    rows = vectors(3000)
    whole = halves_of(rows).moments[0]
    pca, zca = fit_map(whole, WhiteningSpec()), fit_map(whole, WhiteningSpec("zca"))
    assert movement((pca, zca), rows.astype(np.float64)) < 1e-9


def test_few_vectors_tell_nothing() -> None:
    assert not enough_to_tell(4 * 768 - 1, 768)
    assert enough_to_tell(4 * 768, 768)
    assert not enough_to_tell(2000, 8)
