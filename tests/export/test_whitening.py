"""The whitening against numpy, scikit-learn and the identities of the literature."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from whiten_export.whitening import Moments, check_sample_count, fit_pca
from whiten_runtime import UsageError


def anisotropic(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Correlated vectors far from the origin, one dimension offset by -9 as in BERT."""
    generator = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(generator.normal(size=(d, d)))
    vectors = generator.normal(size=(n, d)) @ (np.logspace(0, -2, d)[:, None] * rotation) + generator.normal(size=d)
    vectors[:, 0] -= 9
    return vectors


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 99))
def test_moments_do_not_depend_on_the_partition(sizes: list[int], seed: int) -> None:
    vectors = anisotropic(sum(sizes), 6, seed)
    merged = Moments.empty(6)
    for part in np.split(vectors, np.cumsum(sizes)[:-1]):
        merged = merged.merge(Moments.of(part))
    assert merged.n == len(vectors)
    np.testing.assert_allclose(merged.mean, vectors.mean(axis=0), rtol=1e-12)
    centred = vectors - vectors.mean(axis=0)
    np.testing.assert_allclose(merged.scatter, centred.T @ centred, rtol=1e-9, atol=1e-11)


def test_covariance_is_numpys() -> None:
    vectors = anisotropic(500, 24)
    np.testing.assert_allclose(Moments.of(vectors).covariance, np.cov(vectors.T), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("d", [8, 384])
def test_whitened_vectors_have_identity_covariance(d: int) -> None:
    vectors = anisotropic(4 * d, d)
    fitted = fit_pca(Moments.of(vectors))
    white = (vectors - fitted.mean) @ fitted.weight
    np.testing.assert_allclose(np.cov(white.T), np.eye(d), atol=1e-8)
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=1e-8)
    assert fitted.rank == d
    assert (np.diff(fitted.eigenvalues) <= 0).all()


def test_equals_scikit_learn_up_to_sign() -> None:
    vectors = anisotropic(900, 32)
    fitted = fit_pca(Moments.of(vectors), 12)
    oracle = PCA(n_components=12, whiten=True, svd_solver="full").fit(vectors)
    ours, theirs = (vectors - fitted.mean) @ fitted.weight, oracle.transform(vectors)
    np.testing.assert_allclose(ours * np.sign((ours * theirs).sum(axis=0)), theirs, atol=1e-9)
    np.testing.assert_allclose(fitted.eigenvalues[:12], oracle.explained_variance_, rtol=1e-10)


def test_equals_the_ten_lines_of_the_papers() -> None:
    """np.cov, SVD of it, W = U diag(1/sqrt(s)): the same similarities."""
    vectors = anisotropic(700, 16)
    mean = vectors.mean(axis=0, keepdims=True)
    u, s, _ = np.linalg.svd(np.cov(vectors.T))
    theirs = (vectors - mean) @ (u @ np.diag(1 / np.sqrt(s)))
    fitted = fit_pca(Moments.of(vectors))
    ours = (vectors - fitted.mean) @ fitted.weight
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, atol=1e-7)


def test_columns_are_nested_and_signs_fixed() -> None:
    moments = Moments.of(anisotropic(300, 10))
    full, few = fit_pca(moments), fit_pca(moments, 3)
    np.testing.assert_array_equal(full.weight[:, :3], few.weight)
    largest = full.weight[np.abs(full.weight).argmax(axis=0), np.arange(10)]
    assert (largest > 0).all()


def test_a_singular_direction_is_mapped_to_zero() -> None:
    """The outputs of a LayerNorm are orthogonal to one direction up to rounding, which must not be blown up."""
    vectors = anisotropic(4000, 24)
    vectors -= vectors.mean(axis=1, keepdims=True)
    fitted = fit_pca(Moments.of(vectors.astype(np.float32)))
    assert fitted.rank == 23
    white = (vectors - fitted.mean) @ fitted.weight
    np.testing.assert_array_equal(white[:, 23], 0)
    np.testing.assert_allclose(np.cov(white[:, :23].T), np.eye(23), atol=1e-4)


def test_small_eigenvalues_are_raised_to_the_floor() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(5000, 3)) * [1, 1e-2, 1e-4]
    fitted = fit_pca(Moments.of(vectors))
    white = (vectors - fitted.mean) @ fitted.weight
    assert fitted.rank == 2
    np.testing.assert_allclose(white.std(axis=0), [1, 1, 0.1], rtol=0.05)


@pytest.mark.parametrize(
    ("n", "width", "dimension", "message"),
    [
        (384, 384, 384, "give more than 384 sentences .3840 are advised., or keep --dim 96 or fewer"),
        (100, 384, 26, "rank 99 at most"),
        (0, 384, 1, "rank 0 at most"),
    ],
)
def test_too_few_sentences_are_refused(n: int, width: int, dimension: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_sample_count(n, width, dimension)


def test_few_sentences_are_warned_about() -> None:
    assert "3840 or more are advised" in str(check_sample_count(385, 384, 384))
    assert "are advised" in str(check_sample_count(100, 384, 25))
    assert check_sample_count(4 * 384, 384, 384) is None


@pytest.mark.parametrize("vectors", [np.ones((1, 4)), np.ones((9, 4))])
def test_nothing_to_whiten(vectors: np.ndarray) -> None:
    with pytest.raises(UsageError, match="different sentences|at least 2"):
        fit_pca(Moments.of(vectors))


def test_dimension_out_of_range() -> None:
    for dimension in (0, 5):
        with pytest.raises(ValueError, match="wanted 1 to 4"):
            fit_pca(Moments.of(anisotropic(20, 4)), dimension)
