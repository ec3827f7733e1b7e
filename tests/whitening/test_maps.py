"""Test the whitening against numpy, scikit-learn and the identities of the literature."""

from functools import partial
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf, oas
from sklearn.decomposition import PCA

from support.vectors import anisotropic
from whiten import UsageError
from whiten_whitening.maps import (
    Method,
    WhiteningMap,
    WhiteningSpec,
    check_sample_count,
    fit_map,
    fit_sif,
    parse_shrinkage,
    shrinkage_weight,
    spectrum,
)
from whiten_whitening.moments import Moments

METHODS: tuple[Method, ...] = get_args(Method)


def white(fitted: WhiteningMap, vectors: np.ndarray) -> np.ndarray:
    return np.asarray((vectors - fitted.mean) @ fitted.weight)


def root(matrix: np.ndarray) -> np.ndarray:
    """Return the symmetric square root."""
    values, basis = np.linalg.eigh(matrix)
    return np.asarray((basis * np.sqrt(np.maximum(values, 0))) @ basis.T)


def test_common_components_are_left_out_of_the_whitening() -> None:
    """All-but-the-top keeps the whitened coordinates after the first ones, which scikit-learn's PCA gives too."""
    vectors = anisotropic(400, 16)
    want = PCA(whiten=True).fit_transform(vectors)
    for removed, dimension in ((1, None), (2, 5)):
        got = white(
            fit_map(Moments.of(vectors), WhiteningSpec(dimension=dimension, common_components=removed)), vectors
        )
        kept = want[:, removed:][:, :dimension]
        assert got.shape == kept.shape
        np.testing.assert_allclose(np.abs(got), np.abs(kept), atol=1e-8)


@pytest.mark.parametrize("d", [384, pytest.param(768, marks=pytest.mark.slow)])
def test_each_method_satisfies_its_identity(d: int) -> None:
    """Kessy, Lewin & Strimmer (2018), section 3: cross-covariance Φ = cov(x̂, x), cross-correlation Ψ = Φ D⁻¹."""
    vectors = anisotropic(6 * d, d)
    moments = Moments.of(vectors)
    covariance = moments.covariance
    sigma = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(sigma, sigma)
    scale = np.linalg.norm(np.linalg.inv(covariance))
    cosines = []
    for method in METHODS:
        W = fit_map(moments, WhiteningSpec(method)).weight
        np.testing.assert_allclose(W.T @ covariance @ W, np.eye(d), atol=1e-8, err_msg=method)
        np.testing.assert_allclose(W @ W.T, np.linalg.inv(covariance), atol=1e-8 * scale, err_msg=method)
        phi = W.T @ covariance
        psi = phi / sigma
        if method == "pca":
            gram = phi @ phi.T
            np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-9 * gram[0, 0])
            assert (np.diff(np.diag(gram)) <= 0).all()
        elif method == "zca":
            np.testing.assert_allclose(W, W.T, atol=1e-9 * np.abs(W).max())
            assert np.linalg.eigvalsh(W).min() > 0
            np.testing.assert_allclose(phi, root(covariance), atol=1e-8)
        elif method == "cholesky":
            assert np.array_equal(W, np.tril(W))
            assert (np.diag(W) > 0).all()
            want = np.linalg.cholesky(np.linalg.inv(covariance))
            np.testing.assert_allclose(W, want, atol=1e-7 * np.abs(want).max())
        elif method == "zca-cor":
            np.testing.assert_allclose(psi, root(correlation), atol=1e-8)
            np.testing.assert_allclose(psi, psi.T, atol=1e-9)
        else:
            gram = psi @ psi.T
            np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-9 * gram[0, 0])
            assert (np.diff(np.diag(gram)) <= 0).all()
        rows = (vectors[:200] - moments.mean) @ W
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        cosines.append(rows @ rows.T)
    for other in cosines[1:]:
        np.testing.assert_allclose(other, cosines[0], atol=1e-8)


def test_similarities_equal_the_code_of_the_papers() -> None:
    """The papers compute np.cov, its SVD, and W = U diag(1/sqrt(s))."""
    vectors = anisotropic(700, 16)
    mean = vectors.mean(axis=0, keepdims=True)
    u, s, _ = np.linalg.svd(np.cov(vectors.T))
    theirs = (vectors - mean) @ (u @ np.diag(1 / np.sqrt(s)))
    ours = white(fit_map(Moments.of(vectors)), vectors)
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, atol=1e-7)


@pytest.mark.parametrize("method", ["pca", "pca-cor"])
def test_columns_are_nested_and_signs_fixed(method: Method) -> None:
    moments = Moments.of(anisotropic(300, 10))
    full, few = fit_map(moments, WhiteningSpec(method)), fit_map(moments, WhiteningSpec(method, 3))
    np.testing.assert_array_equal(full.weight[:, :3], few.weight)
    basis = full.weight if method == "pca" else np.sqrt(np.diag(moments.covariance))[:, None] * full.weight
    assert (basis[np.abs(basis).argmax(axis=0), np.arange(10)] > 0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_beta_is_the_exponent_of_the_inverse(method: Method, beta: float) -> None:
    covariance = (moments := Moments.of(anisotropic(300, 10))).covariance
    W = fit_map(moments, WhiteningSpec(method, beta=beta)).weight
    inverse = np.diag(1 / np.sqrt(np.diag(covariance))) if method.endswith("-cor") else np.eye(10)
    values, basis = np.linalg.eigh(inverse @ covariance @ inverse)
    want = inverse @ ((basis * values**-beta) @ basis.T) @ inverse
    np.testing.assert_allclose(W @ W.T, want, rtol=1e-7, atol=1e-9 * np.abs(want).max())


@settings(deadline=None, max_examples=30)
@given(st.integers(3, 60), st.integers(2, 20), st.integers(0, 99))
def test_shrinkage_equals_scikit_learn(n: int, d: int, seed: int) -> None:
    vectors = anisotropic(n, d, seed)
    parts = Moments.of(vectors[: n // 2]).merge(Moments.of(vectors[n // 2 :]))
    assert shrinkage_weight(parts, "ledoit-wolf") == pytest.approx(ledoit_wolf(vectors)[1], abs=1e-9)
    assert shrinkage_weight(parts, "oas") == pytest.approx(oas(vectors)[1], abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shrinkage", ["ledoit-wolf", "oas", 0.2])
def test_the_shrunk_covariance_is_whitened(method: Method, shrinkage: str | float) -> None:
    moments = Moments.of(anisotropic(60, 40))
    fitted = fit_map(moments, WhiteningSpec(method, shrinkage=shrinkage))
    assert 0 < fitted.alpha < 1
    scale = np.trace(moments.covariance) / 40
    shrunk = (1 - fitted.alpha) * moments.covariance + fitted.alpha * scale * np.eye(40)
    np.testing.assert_allclose(fitted.weight.T @ shrunk @ fitted.weight, np.eye(40), atol=1e-9)


@pytest.mark.parametrize("text", ["0_1", "\uff10.5", "nan", "1.1", "-0.1", "0,5", ""])
def test_other_words_for_shrinkage_are_refused(text: str) -> None:
    assert [parse_shrinkage(known) for known in ("oas", "0.5", ".5", "1", "5e-1")] == ["oas", 0.5, 0.5, 1, 0.5]
    with pytest.raises(UsageError, match="wanted none, ledoit-wolf, oas, or a number from 0 to 1"):
        parse_shrinkage(text)


def test_fewer_vectors_than_dimensions_can_be_whitened_with_shrinkage() -> None:
    vectors = anisotropic(20, 40)
    fitted = fit_map(Moments.of(vectors), WhiteningSpec(shrinkage="oas"))
    rows = white(fitted, vectors)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = (rows @ rows.T)[np.triu_indices(20, 1)]
    assert fitted.rank == 19
    assert pairs.std() > 0.05
    assert "guessed by shrinkage" in str(check_sample_count(20, 40, WhiteningSpec(shrinkage="oas")))


@pytest.mark.parametrize("method", ["pca", "zca", "cholesky"])
@pytest.mark.parametrize("n", [2, 10, 40])
def test_vectors_that_are_only_centred_keep_their_distances_however_few_were_fitted_on(method: Method, n: int) -> None:
    others = anisotropic(30, 24, 1)
    fitted = fit_map(Moments.of(anisotropic(n, 24)), WhiteningSpec(method, beta=0))
    np.testing.assert_allclose(fitted.weight @ fitted.weight.T, np.eye(24), atol=1e-12)
    rows, centred = white(fitted, others), others - fitted.mean
    np.testing.assert_allclose(rows @ rows.T, centred @ centred.T, atol=1e-9)
    assert check_sample_count(n, 24, fitted.spec) is None  # type: ignore[arg-type]
    kept = fit_map(Moments.of(anisotropic(n, 24)), WhiteningSpec(beta=0, common_components=2)).weight
    np.testing.assert_allclose(kept.T @ kept, np.eye(22), atol=1e-12)


def test_a_direction_of_rounding_is_dropped_where_float32_is_coarse() -> None:
    """One column is the sum of the others, far from 0: rounding is 1e-11 of the largest variance."""
    vectors = anisotropic(4000, 24)
    vectors[:, 23] = vectors[:, :23].sum(axis=1) + 300
    fitted = fit_map(Moments.of(vectors.astype(np.float32)))
    assert 1e-14 < fitted.eigenvalues[-1] / fitted.eigenvalues[0] < 1e-10
    np.testing.assert_array_equal(fitted.weight[:, 23], 0)


@pytest.mark.parametrize("n", [8, 25])
def test_at_most_d_plus_1_vectors_become_a_simplex_and_are_refused(n: int) -> None:
    """n <= d + 1 fully whitened vectors are the corners of a simplex, whatever they were before."""
    vectors = anisotropic(n, 24)
    rows = white(fit_map(Moments.of(vectors)), vectors)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose((rows @ rows.T)[np.triu_indices(n, 1)], -1 / (n - 1), atol=1e-6)
    with pytest.raises(UsageError, match="all pairs would come out equally similar"):
        check_sample_count(n, 24, WhiteningSpec())


@pytest.mark.parametrize("method", METHODS)
def test_singular_direction_is_mapped_to_zero(method: Method) -> None:
    """Outputs of a LayerNorm are orthogonal to one direction up to rounding, which must not be amplified."""
    vectors = anisotropic(4000, 24)
    vectors -= vectors.mean(axis=1, keepdims=True)
    fitted = fit_map(Moments.of(vectors.astype(np.float32)), WhiteningSpec(method))
    assert fitted.rank == 23
    rows = white(fitted, vectors)
    np.testing.assert_allclose(np.sort(np.linalg.eigvalsh(np.cov(rows.T))), [0] + [1] * 23, atol=1e-3)
    if method == "pca":
        np.testing.assert_array_equal(rows[:, 23], 0)
    noise = 1e-6 * np.ones(24)  # along that direction
    np.testing.assert_allclose(noise @ fitted.weight, 0, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_constant_dimensions_are_mapped_to_zero(method: Method) -> None:
    vectors = anisotropic(400, 6)
    padded = np.insert(vectors, [0, 3], [[7.5, 0.0]] * 400, axis=1).astype(np.float32)
    fitted, plain = (fit_map(Moments.of(part), WhiteningSpec(method)) for part in (padded, vectors.astype(np.float32)))
    rows = white(fitted, padded)
    assert fitted.rank == 6
    np.testing.assert_allclose(rows @ rows.T, (want := white(plain, vectors)) @ want.T, atol=1e-3)
    np.testing.assert_allclose((np.eye(8) @ fitted.weight)[[0, 4]], 0, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_duplicated_vectors_only_rescale_the_map(method: Method) -> None:
    """Each vector occurs three times: only the divisor of the covariance differs, n - 1 against 3n - 1."""
    vectors = anisotropic(300, 8)
    once, thrice = (fit_map(Moments.of(part), WhiteningSpec(method)) for part in (vectors, np.repeat(vectors, 3, 0)))
    factor = np.sqrt(3 * 299 / 899)
    np.testing.assert_allclose(once.weight * factor**-1, thrice.weight, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_huge_offsets_in_float32_are_whitened(method: Method) -> None:
    """Coordinates around -9 and 40, like outliers of BERT and GPT-2, cost the small directions no precision."""
    vectors = anisotropic(3000, 24) * 0.3
    vectors[:, 5] += 40
    fitted = fit_map(Moments.of(vectors.astype(np.float32)), WhiteningSpec(method))
    np.testing.assert_allclose(np.cov(white(fitted, vectors).T), np.eye(24), atol=1e-3)


def test_small_eigenvalues_are_raised_to_the_floor() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(5000, 3)) * [1, 1e-2, 1e-4]
    fitted = fit_map(Moments.of(vectors))
    assert fitted.rank == 2
    np.testing.assert_allclose(white(fitted, vectors).std(axis=0), [1, 1, 0.1], rtol=0.05)


def test_sif_removes_the_common_component_before_whitening() -> None:
    vectors = anisotropic(500, 12)
    common = Moments.of(vectors).common_components(1)[:, 0]
    left = vectors - np.outer(vectors @ common, common)
    alone = white(fit_sif(Moments.of(vectors), None), vectors)
    np.testing.assert_allclose(alone, left, atol=1e-9)
    for method in METHODS:
        rows = white(fit_sif(Moments.of(vectors), WhiteningSpec(method, shrinkage="oas")), vectors)
        want = white(fit_map(Moments.of(left), WhiteningSpec(method, shrinkage="oas")), left)
        np.testing.assert_allclose(rows @ rows.T, want @ want.T, atol=1e-6)
    with pytest.raises(UsageError, match="fourth moment"):
        fit_sif(Moments.of(vectors), WhiteningSpec(shrinkage="ledoit-wolf"))


@pytest.mark.parametrize(
    ("n", "width", "dimension", "message"),
    [
        (385, 384, None, "more than 385 sentences .3840 are advised., keep --dim 96 or fewer dimensions, or shrink"),
        (100, 384, 26, "rank 99 at most"),
        (0, 384, 1, "0 sentences have no covariance; give at least 2"),
        (1, 384, None, "1 sentences have no covariance; give at least 2"),
    ],
)
def test_too_few_sentences_are_refused(n: int, width: int, dimension: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_sample_count(n, width, WhiteningSpec("pca", dimension))


def test_few_sentences_are_warned_about() -> None:
    assert "3840 or more are advised" in str(check_sample_count(386, 384, WhiteningSpec()))
    assert "are advised" in str(check_sample_count(100, 384, WhiteningSpec("pca", 25)))
    assert check_sample_count(4 * 384, 384, WhiteningSpec()) is None


@pytest.mark.parametrize("vectors", [np.ones((1, 4)), np.ones((9, 4))])
def test_single_and_constant_vectors_are_refused(vectors: np.ndarray) -> None:
    with pytest.raises(UsageError, match="different sentences|at least 2"):
        fit_map(Moments.of(vectors))


@pytest.mark.parametrize("method", ["zca", "cholesky", "zca-cor"])
def test_all_dimensions_or_none_are_dropped_of_a_map_whose_columns_have_no_order(method: Method) -> None:
    vectors = np.random.default_rng(4).normal(size=(60, 4))
    for check in (partial(check_sample_count, 60, 4), partial(fit_map, Moments.of(vectors))):
        with pytest.raises(UsageError, match=f"dim 3 cannot be kept of {method}: .* not ordered"):
            check(WhiteningSpec(method, 3))
    whole, named = (fit_map(Moments.of(vectors), WhiteningSpec(method, dimension)) for dimension in (None, 4))
    np.testing.assert_array_equal(named.weight, whole.weight)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "ica"}, "wanted pca, zca"),
        ({"dimension": 0}, "at least 1"),
        ({"beta": -0.1}, "wanted a number from 0"),
        ({"beta": True}, "wanted a number from 0"),
        ({"shrinkage": "lw"}, "wanted none, ledoit-wolf, oas"),
        ({"shrinkage": 2}, "number from 0 to 1"),
    ],
)
def test_invalid_specifications_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WhiteningSpec(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_one_decomposition_serves_every_shrinkage_and_exponent(alpha: float, beta: float) -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(200, 6)) * np.geomspace(1, 1e-4, 6)
    vectors[:, 5] = 0  # a direction that only shrinkage gives some weight
    moments = Moments.of(vectors)
    eigenvalues, basis = spectrum(moments.covariance)
    fitted = fit_map(moments, WhiteningSpec(beta=beta, shrinkage=alpha))
    shrunk = (1 - alpha) * eigenvalues + alpha * eigenvalues.mean()
    factors = np.where((shrunk > 0) | (beta == 0), np.maximum(shrunk, 1e-6 * shrunk[0]) ** (-beta / 2), 0)
    np.testing.assert_allclose(fitted.weight, basis * factors, rtol=1e-12)
    assert (fitted.weight[:, -1] == 0).all() == (alpha == 0 and beta > 0)
