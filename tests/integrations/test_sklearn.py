"""Test bundles as steps of scikit-learn's pipelines."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from support.bundles import copy_bundle
from support.corpus import sentences
from support.vectors import ROUNDING, worst
from whiten import BundleError, Encoder, TextError, UsageError
from whiten.integrations.sklearn import BundleVectorizer

TEXTS = sentences(60)
LABELS = [len(text) > np.median([len(text) for text in TEXTS]) for text in TEXTS]


@pytest.mark.parametrize("texts", [TEXTS, tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, object)])
def test_vectors_are_those_of_the_encoder(tiny_bundle: Path, tiny: Encoder, texts: object) -> None:
    for bundle in (tiny_bundle, str(tiny_bundle), tiny):
        got = BundleVectorizer(bundle).fit_transform(texts)
        assert got.dtype == np.float32
        assert worst(got, tiny.encode(TEXTS)) <= ROUNDING


def test_options_are_those_of_encode(tiny: Encoder) -> None:
    vectorizer = BundleVectorizer(tiny, prompt="p: ", normalize_embeddings=True, truncate_dim=8, batch_size=3)
    want = tiny.encode(TEXTS, prompt="p: ", normalize_embeddings=True, truncate_dim=8)
    assert worst(vectorizer.transform(TEXTS), want) <= ROUNDING
    assert list(vectorizer.get_feature_names_out()) == [f"bundlevectorizer{index}" for index in range(8)]


def test_clones_and_parameters(tiny_bundle: Path, tiny: Encoder) -> None:
    vectorizer = BundleVectorizer(tiny_bundle, truncate_dim=8).fit(TEXTS)
    copied = clone(vectorizer)
    assert copied.get_params() == vectorizer.get_params()
    assert copied.set_params(truncate_dim=4).transform(TEXTS).shape == (60, 4)
    assert worst(clone(BundleVectorizer(tiny)).transform(TEXTS), tiny.encode(TEXTS)) <= ROUNDING


def test_another_bundle_replaces_the_one_that_is_open(tiny_bundle: Path, tiny: Encoder, tmp_path: Path) -> None:
    other = copy_bundle(tiny_bundle, tmp_path, prompts={"a": "b: "}, default_prompt_name="a")
    vectorizer = BundleVectorizer(tiny_bundle).fit(TEXTS)
    vectorizer.set_params(bundle=other)
    assert worst(vectorizer.transform(TEXTS), tiny.encode([f"b: {text}" for text in TEXTS])) <= ROUNDING


def test_pipelines_are_fitted_cloned_pickled_and_searched(tiny_bundle: Path, tiny: Encoder) -> None:
    model = make_pipeline(BundleVectorizer(tiny_bundle), LogisticRegression()).fit(TEXTS, LABELS)
    want = LogisticRegression().fit(tiny.encode(TEXTS), LABELS).predict_proba(tiny.encode(TEXTS))
    pickled = pickle.dumps(model)
    assert len(pickled) < 20_000  # the directory, not the bundle
    for one in (model, pickle.loads(pickled), clone(model).fit(TEXTS, LABELS)):
        assert np.allclose(one.predict_proba(TEXTS), want, atol=1e-3)
    pipeline = Pipeline([("vectors", BundleVectorizer(tiny_bundle)), ("classifier", LogisticRegression())])
    search = GridSearchCV(pipeline, {"vectors__truncate_dim": [4, None], "classifier__C": [0.1, 1]}, cv=2)
    search.fit(TEXTS, LABELS)
    assert len(search.cv_results_["mean_test_score"]) == 4
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()


def test_a_cache_of_a_pipeline_keeps_spaces_apart(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path / "a")

    def run() -> np.ndarray:
        steps = [("vectors", BundleVectorizer(bundle)), ("same", FunctionTransformer())]
        return np.asarray(Pipeline(steps, memory=str(tmp_path / "cache")).fit_transform(TEXTS))

    first, again = run(), run()
    np.testing.assert_array_equal(first, again)
    shutil.rmtree(bundle)
    copy_bundle(tiny_bundle, tmp_path / "b", prompts={"a": "b: "}, default_prompt_name="a").rename(bundle)
    with Encoder(bundle) as encoder:
        assert worst(run(), encoder.encode(TEXTS)) <= ROUNDING
    assert np.abs(run() - first).max() > 0.01


def test_a_pickle_refuses_another_space_until_it_is_fitted_again(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path / "a")
    other = copy_bundle(tiny_bundle, tmp_path / "b", prompts={"a": "b: "}, default_prompt_name="a")
    for source in (bundle, Encoder(bundle)):
        model = make_pipeline(BundleVectorizer(source)).fit(TEXTS)
        pickled = pickle.dumps(model)
        want = model.transform(TEXTS)
        bundle.rename(tmp_path / "moved")
        loaded = pickle.loads(pickled)
        with pytest.raises(BundleError, match="if it has moved, name it by set_params"):
            loaded.transform(TEXTS)
        loaded.set_params(bundlevectorizer__bundle=tmp_path / "moved")
        np.testing.assert_array_equal(loaded.transform(TEXTS), want)
        again = pickle.loads(pickle.dumps(loaded.set_params(bundlevectorizer__bundle=other)))
        for one in (loaded, again):
            with pytest.raises(UsageError, match="gives vectors of the space"):
                one.transform(TEXTS)
        assert np.abs(loaded.fit(TEXTS).transform(TEXTS) - want).max() > 0.01
        (tmp_path / "moved").rename(bundle)


def test_it_is_fitted_from_the_beginning_and_its_output_can_be_a_table(tiny_bundle: Path) -> None:
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(BundleVectorizer(tiny_bundle))
    assert "BundleVectorizer" in repr(BundleVectorizer(tiny_bundle))


def test_options_and_texts_that_cannot_be_used_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"truncate_dim": 1000}, "truncate_dim is 1000"),
        ({"prompt_name": "query"}, "the bundle's prompts are: none"),
        ({"batch_size": 0}, "batch_size is 0"),
    ):
        with pytest.raises(UsageError, match=message):
            BundleVectorizer(tiny_bundle, **options).fit(TEXTS)  # type: ignore[arg-type]
    with pytest.raises(BundleError, match="does not exist"):
        BundleVectorizer(tmp_path / "nowhere").fit(TEXTS)
    vectorizer = BundleVectorizer(tiny_bundle)
    for texts in ("a text", np.array([["a"], ["b"]])):
        with pytest.raises(UsageError, match="wanted one column of texts"):
            vectorizer.transform(texts)
    with pytest.raises(TextError, match=r"texts\[1\] is float"):
        vectorizer.transform(np.array(["a", 1.5], object))
