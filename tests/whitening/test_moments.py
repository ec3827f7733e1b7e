"""Test moments, their isotropy, and decompositions that do not depend on the number of threads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from support.vectors import anisotropic
from whiten_whitening.measures import average_cosine, iso_score, partition_score
from whiten_whitening.moments import Moments, eigh, svd


def merged(vectors: np.ndarray, sizes: list[int]) -> Moments:
    result = Moments.empty(vectors.shape[1])
    for part in np.split(vectors, np.cumsum(sizes)[:-1]):
        result = result.merge(Moments.of(part))
    return result


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any), st.integers(0, 99))
def test_moments_do_not_depend_on_the_partition(sizes: list[int], seed: int) -> None:
    vectors = anisotropic(sum(sizes), 6, seed)
    found = merged(vectors, sizes)
    centred = vectors - vectors.mean(axis=0)
    squares = np.square(centred).sum(axis=1)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert (found.n, found.nonzero) == (len(vectors), len(vectors))
    np.testing.assert_allclose(found.mean, vectors.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.scatter, centred.T @ centred, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.third, squares @ centred, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.fourth, squares @ squares, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.directions, units.sum(axis=0), rtol=1e-9, atol=1e-12)


def test_same_parts_in_the_same_order_give_the_same_bits() -> None:
    vectors = anisotropic(5000, 32).astype(np.float32)
    first, second = (merged(vectors, [1500, 1, 3000, 499]) for _ in range(2))
    for name, array in first.to_arrays().items():
        np.testing.assert_array_equal(array, second.to_arrays()[name], strict=True)


def test_huge_offsets_lose_no_precision() -> None:
    """E[xxᵀ] - μμᵀ would lose all digits: variances of 1e-4 beside squares of 1e8."""
    vectors = np.random.default_rng(0).normal(size=(4000, 5)) * 1e-2
    np.testing.assert_allclose(
        merged(vectors + np.array([0, 1e4, -9, 0, 1e4]), [1000] * 4).covariance,
        np.cov(vectors.T),
        rtol=1e-6,
        atol=1e-12,
    )


def test_moments_of_mapped_vectors_are_derived() -> None:
    vectors, generator = anisotropic(400, 6), np.random.default_rng(1)
    mean, weight = generator.normal(size=6), generator.normal(size=(6, 3))
    found, want = Moments.of(vectors).affine(mean, weight), Moments.of((vectors - mean) @ weight)
    np.testing.assert_allclose(found.mean, want.mean, atol=1e-10)
    np.testing.assert_allclose(found.scatter, want.scatter, rtol=1e-8, atol=1e-8)


def test_arrays_that_are_not_moments_are_refused() -> None:
    arrays = Moments.of(anisotropic(20, 4)).to_arrays()
    assert Moments.from_arrays(arrays).n == 20
    for name, bad in (
        ("mean", np.zeros(3)),
        ("scatter", np.full((4, 4), np.nan)),
        ("n", np.array([3, 4])),
        ("third", np.zeros(4, np.int32)),
        ("n", np.array([20.0, 20.0])),
    ):
        with pytest.raises(ValueError, match="moments"):
            Moments.from_arrays(arrays | {name: bad})


def reference_iso_score(covariance: np.ndarray) -> float:
    """Compute Rudman et al. 2022, section 3, step by step: from the diagonal in principal components to the score."""
    variances = np.linalg.eigvalsh(covariance)
    d = len(variances)
    normalised = np.sqrt(d) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - np.ones(d)) / np.sqrt(2 * (d - np.sqrt(d)))
    uniformly_used = (d - defect**2 * (d - np.sqrt(d))) ** 2 / d**2
    return float((d * uniformly_used - 1) / (d - 1))


@pytest.mark.parametrize("d", [2, 7, 64])
def test_iso_score_equals_the_definition(d: int) -> None:
    covariance = np.cov(anisotropic(500, d).T)
    assert iso_score(covariance) == pytest.approx(reference_iso_score(covariance), abs=1e-12)
    assert iso_score(np.eye(d)) == pytest.approx(1)
    assert iso_score(np.diag([1.0] + [0.0] * (d - 1))) == pytest.approx(0)


def test_iso_score_of_degenerate_covariances() -> None:
    assert iso_score(np.array([[3.0]])) == 1
    assert iso_score(np.zeros((3, 3))) == 1


def test_average_cosine_equals_the_mean_over_all_pairs() -> None:
    vectors = np.concatenate([anisotropic(40, 5), np.zeros((2, 5))])
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = (vectors / np.where(norms > 0, norms, 1)) @ (vectors / np.where(norms > 0, norms, 1)).T
    pairs = cosines[np.triu_indices(len(vectors), 1)]
    assert average_cosine(merged(vectors, [13, 29])) == pytest.approx(pairs.mean(), abs=1e-12)
    assert np.isnan(average_cosine(Moments.of(vectors[:1])))


def test_partition_score_equals_the_definition() -> None:
    vectors = anisotropic(60, 5) / 3
    _, basis = np.linalg.eigh(vectors.T @ vectors)
    for column in range(5):
        if basis[np.abs(basis[:, column]).argmax(), column] < 0:
            basis[:, column] *= -1
    sums = [sum(np.exp(direction @ vector) for vector in vectors) for direction in basis.T]
    assert partition_score(vectors) == pytest.approx(min(sums) / max(sums), rel=1e-9)
    assert 0 <= partition_score(1e4 * vectors) < 1e-9  # where exp alone would overflow


def test_moments_of_a_covariance_have_it() -> None:
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
    np.testing.assert_allclose(Moments.of_covariance(5, np.ones(2), covariance).covariance, covariance, rtol=1e-15)


@pytest.mark.parametrize("decompose", [eigh, svd])
def test_bits_do_not_depend_on_the_number_of_threads(decompose) -> None:  # type: ignore[no-untyped-def]
    matrix = np.cov(np.random.default_rng(0).normal(size=(500, 200)).T)
    found = []
    for threads in (1, 2, 4):
        with threadpool_limits(threads, "blas"):
            found.append([part.tobytes() for part in decompose(matrix)])
    assert found[0] == found[1] == found[2]
