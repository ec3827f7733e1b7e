"""Test that an opened bundle answers as a SentenceTransformer does: types, tokenizer, features and saved settings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerFast

from support.bundles import copy_bundle
from support.published import static
from whiten import Encoder, UsageError
from whiten.integrations.sentence_transformers import BundleTransformer, load

WIDTH = 32
PRECISIONS = ["float32", "int8", "uint8", "binary", "ubinary"]


@pytest.fixture(scope="module")
def model(golden: Path) -> BundleTransformer:
    return load(golden / "bundle-v1")


@pytest.fixture(scope="module")
def reference() -> SentenceTransformer:
    """Return a model of sentence-transformers' own modules, of the bundle's dimension."""
    return SentenceTransformer(modules=[static(WIDTH)], device="cpu")


def kind(found: Any) -> Any:
    """Return the types, dtypes and shapes of what `encode` gave."""
    if isinstance(found, list):
        return [kind(one) for one in found]
    return type(found), found.dtype, tuple(found.shape)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("texts", [[], "a", ["a", "a long text", "b"]], ids=["none", "one", "several"])
def test_types_and_shapes_are_those_of_a_sentence_transformer(
    model: BundleTransformer,
    reference: SentenceTransformer,
    texts: str | list[str],
    precision: str,
    tensor: bool,
    numpy: bool,
) -> None:
    options = {"precision": precision, "convert_to_tensor": tensor, "convert_to_numpy": numpy}
    if texts == "a" and precision in ("int8", "uint8"):  # sentence-transformers takes ranges from several texts alone
        want = reference.encode(["a", "b"], **options)[0]
    else:
        want = reference.encode(texts, **options)
    assert kind(model.encode(texts, **options)) == kind(want)


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_lists_of_tensors_hold_the_vectors_of_the_encoder(model: BundleTransformer, precision: str) -> None:
    found = model.encode(["a", "b"], precision=precision, convert_to_numpy=False)
    want = model[0].encoder.encode(["a", "b"], precision=precision)
    np.testing.assert_allclose(torch.stack(found).numpy(), want, rtol=0, atol=1)


@pytest.mark.parametrize("options", [{}, {"normalize_embeddings": True}, {"truncate_dim": 8}])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_texts_give_an_empty_result_whatever_the_options(
    model: BundleTransformer, reference: SentenceTransformer, options: dict[str, Any], precision: str
) -> None:
    want = reference.encode([], precision=precision, **options)
    assert kind(model.encode([], precision=precision, **options)) == kind(want)


def test_the_tokenizer_is_that_of_transformers(model: BundleTransformer) -> None:
    assert isinstance(model.tokenizer, PreTrainedTokenizerFast)
    assert model.tokenizer is model.tokenizer
    ids = model.tokenizer(["a text"], padding=True, return_tensors="pt")["input_ids"]
    assert torch.equal(ids, model.preprocess(["a text"])["input_ids"])


def test_all_features_of_a_text_can_be_asked_for(model: BundleTransformer) -> None:
    texts = ["a", "a long text"]
    plain = model.encode(texts, output_value=None)
    assert [set(one) for one in plain] == [{"input_ids", "attention_mask", "sentence_embedding", "modality"}] * 2
    prompted = model.encode(texts, output_value=None, prompt="a: ")
    assert [set(one) for one in prompted] == [set(plain[0]) | {"prompt_length"}] * 2
    want = model.encode(texts, prompt="a: ")
    np.testing.assert_array_equal([one["sentence_embedding"].numpy() for one in prompted], want)


def test_features_can_be_computed_in_two_steps(model: BundleTransformer) -> None:
    features = model.preprocess(["a", "a long text"])
    assert features["input_ids"].shape == features["attention_mask"].shape
    found = model(features)["sentence_embedding"]
    np.testing.assert_array_equal(found.numpy(), model.encode(["a", "a long text"]))


@pytest.mark.parametrize("name", ["dot", "euclidean"])
def test_a_copy_keeps_the_settings_of_the_model(golden: Path, tmp_path: Path, name: str) -> None:
    model = load(golden / "bundle-v1")
    model.similarity_fn_name = name
    model.prompts = {"query": "ask: ", "document": "read: "}
    model.max_seq_length = 10
    model.save_pretrained(str(tmp_path / "copy"))
    again = load(tmp_path / "copy")
    assert (again.similarity_fn_name, again.max_seq_length) == (name, 10)
    assert again.prompts == {"query": "ask: ", "document": "read: "}
    want = model.encode_query(["a text of several words, cut to a few of them by the length"])
    np.testing.assert_array_equal(
        again.encode_query(["a text of several words, cut to a few of them by the length"]), want
    )
    with Encoder(tmp_path / "copy") as copy, Encoder(golden / "bundle-v1") as encoder:
        assert copy.manifest.similarity_fn_name == name
        assert copy.manifest.prompts == {"query": "ask: ", "document": "read: "}
        assert copy.space != encoder.space  # vectors of other prompts


def test_a_copy_with_another_similarity_keeps_its_space(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path, prompts={"query": "ask: "})
    model = load(bundle)
    model.similarity_fn_name = "dot"
    model.save_pretrained(str(tmp_path / "saved"))
    with Encoder(bundle) as encoder, Encoder(tmp_path / "saved") as copy:
        assert copy.space == encoder.space
        assert copy.manifest.prompts == encoder.manifest.prompts


def test_a_truncate_dim_above_the_dimension_keeps_all_coordinates(model: BundleTransformer) -> None:
    np.testing.assert_array_equal(model.encode(["a"], truncate_dim=WIDTH + 1), model.encode(["a"]))


def test_pooling_of_prompts_cannot_be_changed_after_the_export(model: BundleTransformer) -> None:
    model.set_pooling_include_prompt(True)
    with pytest.raises(UsageError, match="include_prompt is False, but this bundle was exported with True"):
        model.set_pooling_include_prompt(False)


def test_saving_nowhere_does_nothing(model: BundleTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model.save(None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_no_texts_need_no_ranges_and_can_be_cut(golden: Path, tmp_path: Path, precision: str) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path, whitening=None)
    model = load(bundle)
    assert model.encode([], precision=precision).shape == model.encode([]).shape
    assert model.encode(sentences=[], precision=precision).shape == model.encode([]).shape
    assert model.encode([], precision=precision, truncate_dim=8).shape == model.encode([]).shape
    with pytest.raises(UsageError, match="truncate_dim is 8, but there is no whitening"):
        model.encode(["a"], truncate_dim=8)
    with pytest.raises(UsageError, match="stores no moments"):
        model.encode(["a"], precision=precision)
