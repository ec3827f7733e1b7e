"""Test `Whitening` as users of scikit-learn would use it."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from support.vectors import anisotropic
from whiten import UsageError, WhitenError, Whitening


def test_equals_scikit_learn_up_to_sign() -> None:
    vectors = anisotropic(900, 12)
    whitening, oracle = Whitening(n_components=5), PCA(5, whiten=True, svd_solver="full")
    ours, theirs = whitening.fit_transform(vectors), oracle.fit_transform(vectors)
    np.testing.assert_allclose(ours * np.sign((ours * theirs).sum(axis=0)), theirs, atol=1e-9)
    np.testing.assert_allclose(whitening.eigenvalues_[:5], oracle.explained_variance_, rtol=1e-10)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(0, 99))
def test_partial_fit_and_merge_equal_one_fit(sizes: list[int], seed: int) -> None:
    vectors = anisotropic(sum(sizes) + 20, 5, seed)
    parts = np.split(vectors, np.cumsum(sizes)[:-1])
    whole, streamed = Whitening("zca").fit(vectors), Whitening("zca")
    fitted = [Whitening("zca").partial_fit(part) for part in parts]
    for part in parts:
        streamed.partial_fit(part)
    merged = Whitening("zca")
    for part_whitening in fitted:
        merged.merge(part_whitening)
    for other in (streamed, merged):
        assert other.n_samples_seen_ == len(vectors)
        np.testing.assert_allclose(other.weight_, whole.weight_, rtol=1e-6, atol=1e-7 * np.abs(whole.weight_).max())
    np.testing.assert_array_equal(streamed.weight_, merged.weight_)


def test_fit_starts_anew_and_partial_fit_continues() -> None:
    vectors = anisotropic(300, 4)
    whitening = Whitening().fit(vectors + 5)
    np.testing.assert_array_equal(whitening.fit(vectors).weight_, Whitening().fit(vectors).weight_)
    before = whitening.mean_
    assert whitening.partial_fit(vectors + 1).n_samples_seen_ == 600
    assert np.abs(whitening.mean_ - before).max() > 0.1


def test_works_with_clone_and_pipeline() -> None:
    generator = np.random.default_rng(0)
    vectors, labels = anisotropic(400, 6), generator.integers(0, 2, 400)
    vectors[:, 1] += labels
    copied = clone(Whitening("pca-cor", n_components=4, shrinkage="oas"))
    assert copied.get_params() == {"method": "pca-cor", "n_components": 4, "beta": 1.0, "shrinkage": "oas"}
    pipeline = make_pipeline(copied, LogisticRegression()).fit(vectors, labels)
    assert pipeline.score(vectors, labels) > 0.6
    pipeline.set_params(whitening__n_components=2)
    assert pipeline.fit(vectors, labels)[0].weight_.shape == (6, 2)
    with pytest.raises(UsageError, match="no parameter 'k'"):
        copied.set_params(k=3)


def test_saved_bytes_are_the_same_in_every_process(tmp_path: Path) -> None:
    whitening = Whitening("pca", shrinkage=0.25).fit(anisotropic(50, 3))
    path = tmp_path / "w.safetensors"
    contents = set()
    for _ in range(20):  # the order of metadata is random from one call to the next, in most versions of safetensors
        whitening.save(path)
        contents.add(path.read_bytes())
    assert len(contents) == 1
    with safe_open(path, "numpy") as file:
        assert set(file.metadata()) == {"beta", "method", "n_components", "shrinkage"}


def test_saved_and_loaded_estimator_continues_fitting(tmp_path: Path) -> None:
    vectors = anisotropic(500, 8)
    whitening = Whitening("pca-cor", 3, 0.5, 0.25).partial_fit(vectors[:200])
    whitening.save(tmp_path / "w.safetensors")
    loaded = Whitening.load(tmp_path / "w.safetensors")
    assert repr(loaded) == repr(whitening)
    np.testing.assert_array_equal(
        loaded.partial_fit(vectors[200:]).weight_, whitening.partial_fit(vectors[200:]).weight_
    )
    (tmp_path / "other.safetensors").write_bytes(b"nothing")
    for name in ("other.safetensors", "absent.safetensors"):
        with pytest.raises(WhitenError, match="not a saved Whitening"):
            Whitening.load(tmp_path / name)


def test_output_type_follows_the_input_type() -> None:
    vectors = anisotropic(100, 4)
    whitening = Whitening().fit(vectors)
    assert whitening.transform(vectors.astype(np.float32)).dtype == np.float32
    assert whitening.transform(vectors).dtype == np.float64
    assert whitening.transform((10 * vectors).astype(int)).dtype == np.float64
    assert (whitening.n_features_in_, whitening.rank_, whitening.shrinkage_) == (4, 4, 0)
    assert whitening.eigenvalues_.shape == (4,)


def test_few_vectors_are_warned_about() -> None:
    with pytest.warns(UserWarning, match="10 vectors for 4 dimensions"):
        Whitening().fit(anisotropic(10, 4))


def test_failed_fit_leaves_no_attributes_and_parameters_can_change() -> None:
    vectors = anisotropic(100, 4)
    whitening = Whitening()
    assert not hasattr(whitening, "mean_")
    whitening.fit(vectors)
    whitening.beta = 0.0
    np.testing.assert_array_equal(whitening.weight_, Whitening(beta=0.0).fit(vectors).weight_)
    with pytest.raises(UsageError, match="not finite"):
        whitening.fit(np.full((3, 4), np.nan))
    with pytest.raises(UsageError, match="has seen no vectors"):
        whitening.transform(vectors)


def test_large_offsets_in_float64_are_not_taken_for_constants() -> None:
    vectors = np.random.default_rng(0).normal(size=(1000, 5)) + np.array([0, 1e8, 0, 0, 1e8])
    for method in ("pca", "pca-cor"):
        white = Whitening(method).fit_transform(vectors)  # type: ignore[arg-type]
        np.testing.assert_allclose(np.cov(white.T), np.eye(5), atol=1e-6)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Fit on a memory-mapped file of 64 MB, and check that less than 8 MB are allocated."""
    import tracemalloc

    table = np.lib.format.open_memmap(tmp_path / "v.npy", "w+", np.float32, (1_000_000, 16))
    table[:] = np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32).repeat(1000, axis=0)
    tracemalloc.start()
    Whitening().fit(table)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6


@pytest.mark.parametrize(
    ("action", "named"),
    [
        (lambda w, x: w.transform(x), "Whitening"),
        (lambda w, x: w.fit(x[0]), "X"),
        (lambda w, x: w.fit([["a"]]), "X"),
        (lambda w, x: w.fit(x + 1j), "complex128"),
        (lambda w, x: w.fit(np.where(np.arange(100)[:, None] == 7, np.nan, x)), r"X\[7\]"),
        (lambda w, x: w.fit(x).transform(x[:, :2]), "X has 2 features, but Whitening is expecting 4 features"),
        (lambda w, x: w.fit(x).merge(Whitening().fit(x[:, :2])), "2 dimensions"),
        (lambda w, x: w.fit(x).merge(Whitening()), "Whitening"),
        (lambda w, x: w.fit(x[:5]), "5"),
        (lambda w, x: w.fit(1e300 * x), "float64"),
        (lambda w, x: w.fit([[0.0, 1.0], [2.0]]), "X"),
        (lambda w, x: w.set_params(n_components=9).fit(x), "1 to 4"),
        (lambda w, x: w.set_params(method="zca", n_components=2).fit(x), "zca"),
    ],
)
def test_invalid_inputs_are_refused(action: object, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        action(Whitening(), anisotropic(100, 4))  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*give a rough whitening:UserWarning")
def test_the_checks_of_scikit_learn_pass() -> None:
    from sklearn.utils.estimator_checks import check_estimator

    results = check_estimator(Whitening(), on_fail=None, on_skip=None)
    failed = {result["check_name"] for result in results if result["status"] == "failed"}
    # arrays of objects are refused, and one vector is refused in words of vectors, not of samples
    assert failed == {"check_dtype_object", "check_fit2d_1sample"}


@pytest.mark.parametrize("method", ["pca", "zca", "cholesky", "pca-cor", "zca-cor"])
def test_columns_of_tiny_scales_come_out_with_deviation_1(method: Any) -> None:
    X = np.random.default_rng(0).standard_normal((5000, 3)) * [1e-150, 1e-156, 1e-153]
    with warnings.catch_warnings(action="error"):
        white = Whitening(method).fit_transform(X)
    np.testing.assert_allclose(np.cov(white.T), np.eye(3), atol=1e-3)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_columns_that_do_not_come_out_with_deviation_1_are_warned_of(kind: Any) -> None:
    X = np.random.default_rng(0).standard_normal((5000, 3))
    X[:, 2] = X[:, 0] if kind == np.float64 else X[:, 2] * 1e-4
    whitening = Whitening()
    with pytest.warns(UserWarning, match="1 of 3 columns .* column 2") as caught:
        white = whitening.fit(X.astype(kind)).transform(X)
    assert ("float64" in str(caught[0].message)) == (kind == np.float32)
    assert whitening.rank_ == 2
    np.testing.assert_allclose(white[:, :2].std(axis=0), 1, atol=1e-3)
    assert white[:, 2].std() < 0.5


def test_precision_of_the_vectors_is_saved_and_merged(tmp_path: Path) -> None:
    X = np.random.default_rng(0).standard_normal((5000, 2)) * [1, 1e-4]
    single, double = Whitening().partial_fit(X.astype(np.float32)), Whitening().partial_fit(X)
    with pytest.warns(UserWarning, match="deviation 1"):
        assert single.rank_ == 1
    assert double.rank_ == 2
    for whitening, rank in ((single, 1), (double, 2)):
        whitening.save(tmp_path / "w")
        with warnings.catch_warnings(action="ignore"):
            assert Whitening.load(tmp_path / "w").rank_ == rank
    with warnings.catch_warnings(action="ignore"):
        assert double.merge(single).rank_ == 1


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_pipelines_give_tables_with_names(container: Any) -> None:
    pandas, sklearn = pytest.importorskip("pandas"), pytest.importorskip("sklearn")
    module = pytest.importorskip(container)
    vectors = anisotropic(100, 4)
    table = pandas.DataFrame(vectors, columns=list("abcd"), index=range(100, 0, -1))
    want = Whitening(n_components=3).fit_transform(vectors)
    for model in (Whitening(n_components=3), clone(Whitening(n_components=3).set_output(transform=container))):
        pipeline = make_pipeline(model).set_output(transform=container)
        result = pipeline.fit_transform(table)
        assert isinstance(result, module.DataFrame)
        assert list(result.columns) == list(pipeline.get_feature_names_out()) == [f"whitening{i}" for i in range(3)]
        np.testing.assert_allclose(result.to_numpy(), want, rtol=1e-9)
        if container == "pandas":
            assert list(result.index) == list(table.index)
    with sklearn.config_context(transform_output=container):
        assert isinstance(Whitening().fit_transform(vectors), module.DataFrame)
    assert isinstance(Whitening().set_output(transform="default").fit_transform(table), np.ndarray)
    with pytest.raises(UsageError, match="transform is 'arrow'"):
        Whitening().set_output(transform="arrow")


@pytest.mark.parametrize("number", [np.float32(0.1), np.float64(0.25), np.int64(1), np.float16(0.5), 0, 1.0])
def test_numbers_of_numpy_are_numbers(number: Any, tmp_path: Path) -> None:
    vectors = anisotropic(100, 4)
    for name in ("beta", "shrinkage"):
        whitening = Whitening(**{name: number}).fit(vectors)
        np.testing.assert_array_equal(whitening.weight_, Whitening(**{name: float(number)}).fit(vectors).weight_)
        whitening.save(tmp_path / "saved")
        np.testing.assert_array_equal(Whitening.load(tmp_path / "saved").weight_, whitening.weight_)
    for wrong in (True, np.float64("nan"), 1.5, np.float32(-1), "0.1", None, np.array([0.1]), 1j):
        with pytest.raises(UsageError, match="beta is"):
            Whitening(beta=wrong).fit(vectors)
