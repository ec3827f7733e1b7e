"""Test bundles as models of the real sentence-transformers, beside their encoders."""

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from support.bundles import add_token_without_row, copy_bundle
from support.corpus import NASTY, sentences
from support.vectors import ROUNDING, worst
from whiten import (
    BundleError,
    Encoder,
    IntegrityError,
    NoVectorError,
    TextError,
    TooLongError,
    UsageError,
    WhitenError,
)
from whiten.integrations.sentence_transformers import BundleModule, load
from whiten_runtime.bundle.bundle import changed_client_files
from whiten_runtime.inference.options import EncodeOptions

pytestmark = pytest.mark.slow

TEXTS = [*NASTY, *sentences(60), "long " * 400, "a"]
PROMPTS = {"query": "query: ", "passage": "passage: ", "angle": 'Say "{text}" in one word', "empty": ""}

Pair = Callable[..., tuple[SentenceTransformer, Encoder]]


@pytest.fixture
def opened(golden: Path, tmp_path: Path) -> Iterator[Pair]:
    """Return a function that opens a golden bundle, with some fields of its manifest changed, in both ways."""
    with ExitStack() as stack:

        def get(bundle: str = "bundle-v1", **changes: Any) -> tuple[SentenceTransformer, Encoder]:
            copy = copy_bundle(golden / bundle, tmp_path / str(len(list(tmp_path.iterdir()))), **changes)
            if "max_seq_length" in changes:  # as the export writes it
                (copy / "sentence_bert_config.json").write_text(
                    json.dumps({"max_seq_length": changes["max_seq_length"]})
                )
            return load(copy), stack.enter_context(Encoder(copy))

        yield get


@pytest.mark.parametrize("bundle", ["bundle-v1", "bundle-v1-int8"])
def test_vectors_are_those_of_the_encoder(opened: Pair, bundle: str) -> None:
    model, encoder = opened(bundle)
    want = encoder.encode(TEXTS)
    got = model.encode(TEXTS)
    assert (type(got), got.dtype, got.shape) == (np.ndarray, np.float32, want.shape)
    assert worst(got, want) <= ROUNDING
    assert worst(model.encode(np.array(TEXTS, object), batch_size=7), want) <= ROUNDING
    assert worst(model.encode("a text"), encoder.encode("a text")) <= ROUNDING
    assert model.encode([]).size == 0


def test_vectors_of_the_real_checkpoint_are_those_of_the_encoder(minilm_bundle: Path) -> None:
    model = load(minilm_bundle)
    with Encoder(minilm_bundle) as encoder:
        assert worst(model.encode(TEXTS), encoder.encode(TEXTS)) <= 1e-6
        assert worst(model.encode(TEXTS[4]), encoder.encode(TEXTS[4])) <= 1e-6


def test_options_are_those_of_sentence_transformers(opened: Pair) -> None:
    model, encoder = opened()
    tensor = model.encode(TEXTS, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    assert worst(tensor.numpy(), encoder.encode(TEXTS)) <= ROUNDING
    assert [type(row) for row in model.encode(["a", "b"], convert_to_numpy=False)] == [torch.Tensor] * 2
    unit = encoder.encode(TEXTS, normalize_embeddings=True)
    assert worst(model.encode(TEXTS, normalize_embeddings=True), unit) <= ROUNDING
    signs = model.encode(TEXTS[:9], None, None, 4, False, "sentence_embedding", "binary")
    assert (signs.dtype, signs.shape) == (np.int8, (9, encoder.dimension // 8))
    assert model.get_embedding_dimension() == encoder.dimension
    assert model.encode("a", output_value=None)["sentence_embedding"].shape == (encoder.dimension,)
    assert "a" in model.tokenizer.tokenize("a")


def test_truncated_vectors_are_those_of_the_encoder(opened: Pair) -> None:
    model, encoder = opened()
    want = encoder.encode(TEXTS, truncate_dim=8)
    assert worst(model.encode(TEXTS, truncate_dim=8), want) <= ROUNDING
    with model.truncate_embeddings(8):
        assert worst(model.encode(TEXTS), want) <= ROUNDING
        assert model.get_embedding_dimension() == 8
    assert worst(load(encoder, truncate_dim=8).encode(TEXTS), want) <= ROUNDING


def test_truncated_vectors_are_normalised_where_those_of_the_bundle_are(opened: Pair) -> None:
    model, encoder = opened(normalize=True)  # only the manifest says so: its graph does not normalise
    assert worst(model.encode(TEXTS, truncate_dim=8), encoder.encode(TEXTS, truncate_dim=8)) <= ROUNDING
    assert np.allclose(np.linalg.norm(model.encode(TEXTS, truncate_dim=8), axis=1), 1, atol=1e-5)


def test_truncation_that_means_nothing_is_refused(opened: Pair, golden: Path) -> None:
    record = json.loads((golden / "bundle-v1" / "whiten.json").read_text("utf-8"))["whitening"]
    model, encoder = opened(whitening=record | {"method": "zca"})
    for attempt in (lambda: model.encode("a", truncate_dim=8), lambda: load(encoder, truncate_dim=8)):
        with pytest.raises(UsageError, match="the whitening is zca"):
            attempt()
    model.truncate_dim = 8
    with pytest.raises(UsageError, match="the whitening is zca"):
        model.encode("a")


@pytest.mark.parametrize("default", [None, "passage", "angle"])
@pytest.mark.parametrize("include_prompt", [True, False])
def test_prompts_are_applied_as_the_encoder_applies_them(
    opened: Pair, default: str | None, include_prompt: bool
) -> None:
    if default == "angle" and not include_prompt:
        for one in opened(prompts=PROMPTS, default_prompt_name=default, include_prompt=False):
            with pytest.raises(UsageError, match="goes around the text"):
                one.encode(["a"])
        return
    prompts = PROMPTS if include_prompt else {name: text for name, text in PROMPTS.items() if "{" not in text}
    model, encoder = opened(prompts=prompts, default_prompt_name=default, include_prompt=include_prompt)
    choices: list[dict[str, str]] = [{}, {"prompt": "another: "}, *({"prompt_name": name} for name in prompts)]
    for choice in choices:
        for name in ("encode", "encode_query", "encode_document"):
            want = getattr(encoder, name)(TEXTS, **choice)
            assert worst(getattr(model, name)(TEXTS, **choice), want) <= ROUNDING, (name, choice)


def test_route_of_the_other_task_is_refused(opened: Pair) -> None:
    model, encoder = opened(route="document")
    assert worst(model.encode_document(["a"]), encoder.encode_document(["a"])) <= ROUNDING
    with pytest.raises(UsageError, match="holds the route document"):
        model.encode_query(["a"])


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity_is_that_of_the_encoder(opened: Pair, name: str) -> None:
    model, encoder = opened(similarity_fn_name=name)
    assert model.similarity_fn_name == name
    vectors = model.encode(TEXTS[:20])
    np.testing.assert_allclose(model.similarity(vectors, vectors), encoder.similarity(vectors, vectors), atol=2e-4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_are_cut_to_a_smaller_maximum_length(opened: Pair, side: str) -> None:
    model, encoder = opened(truncation_side=side)
    _, shorter = opened(truncation_side=side, max_seq_length=10)
    assert model.max_seq_length == encoder.max_seq_length
    model.max_seq_length = 10
    assert model.max_seq_length == 10
    assert worst(model.encode(TEXTS), shorter.encode(TEXTS)) <= ROUNDING
    model.max_seq_length = encoder.max_seq_length
    assert worst(model.encode(TEXTS), encoder.encode(TEXTS)) <= ROUNDING


def test_a_smaller_maximum_length_keeps_what_the_encoder_has(golden: Path, tmp_path: Path) -> None:
    """Its tokenizer, whatever is at its path now; its number of characters; and its count of texts that were cut."""
    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    long = "word " * 500
    with Encoder(bundle, max_characters=40) as encoder:
        model = load(encoder)
        model.max_seq_length = 10
        want = model.encode([long, "a"])
        assert encoder.truncated == 1
        with pytest.raises(TooLongError, match="has 2500 characters, but at most 40 are read"):
            model[0]._embedder.tokenize([long], EncodeOptions(truncate=False))
        (bundle / "tokenizer.json").write_bytes((golden / "bundle-v1-int8" / "tokenizer.json").read_bytes() + b" ")
        again = load(encoder)
        again.max_seq_length = 10
        np.testing.assert_array_equal(again.encode([long, "a"]), want)
        with pytest.raises(IntegrityError, match=r"tokenizer\.json: replaced or altered since"):
            _ = again.tokenizer
        with pytest.raises(IntegrityError, match=r"tokenizer\.json: replaced or altered since"):
            again.save(str(tmp_path / "saved"))


@pytest.mark.parametrize("length", [0, 2, 10_000, 8.5, "9", None])
def test_maximum_lengths_that_the_bundle_cannot_have_are_refused(opened: Pair, length: object) -> None:
    model, encoder = opened()
    with pytest.raises(UsageError, match=f"wanted a whole number from 3 to {encoder.max_seq_length}"):
        model.max_seq_length = length


def test_a_saved_copy_opens_in_every_way(opened: Pair, tmp_path: Path) -> None:
    model, encoder = opened(prompts=PROMPTS, default_prompt_name="passage", similarity_fn_name="dot")
    folder = tmp_path / "saved" / "copy"
    model.save_pretrained(str(folder))
    want = encoder.encode(TEXTS)
    types = [module["type"] for module in json.loads((folder / "modules.json").read_text("utf-8"))]
    assert types == ["whiten.integrations.sentence_transformers.BundleModule"]
    with Encoder(folder) as copy:
        assert worst(copy.encode(TEXTS), want) <= ROUNDING
        assert copy.space == encoder.space
        assert changed_client_files(folder, copy.manifest.files) == [
            "README.md",
            "config_sentence_transformers.json",
            "modules.json",
        ]
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        SentenceTransformer(str(folder))
    for again in (SentenceTransformer(str(folder), trust_remote_code=True, local_files_only=True), load(folder)):
        assert worst(again.encode(TEXTS), want) <= ROUNDING
        assert worst(again.encode_query(TEXTS), encoder.encode_query(TEXTS)) <= ROUNDING
        assert worst(again.encode_document(TEXTS), encoder.encode_document(TEXTS)) <= ROUNDING
        assert (again.similarity_fn_name, again.default_prompt_name) == ("dot", "passage")
        assert again.max_seq_length == encoder.max_seq_length


def test_a_copy_keeps_its_maximum_length_and_can_be_saved_over_itself(opened: Pair, tmp_path: Path) -> None:
    model, encoder = opened()
    model.max_seq_length = 10
    want = model.encode(TEXTS)
    for _ in range(2):
        model.save(str(tmp_path / "saved"))
        model = SentenceTransformer(
            str(tmp_path / "saved"), trust_remote_code=True, local_files_only=True, model_kwargs={"threads": 1}
        )
        assert model.max_seq_length == 10
        assert worst(model.encode(TEXTS), want) <= ROUNDING
    with Encoder(tmp_path / "saved") as copy:
        assert worst(copy.encode(TEXTS), encoder.encode(TEXTS)) <= ROUNDING  # its length is the manifest's
    leftovers = [path.name for path in (tmp_path / "saved").rglob("*") if path.name.startswith(".")]
    assert leftovers == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_kwargs": {"dtype": "float16"}}, "model_kwargs has dtype; wanted options of whiten's Encoder"),
        ({"processor_kwargs": {"model_max_length": 9}}, "processor_kwargs: a bundle has no such options"),
        ({"config_kwargs": {"x": 1}}, "config_kwargs: a bundle has no such options"),
        ({"backend": "openvino"}, "backend is 'openvino'"),
    ],
)
def test_options_that_a_bundle_does_not_have_are_refused(
    opened: Pair, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    opened()[0].save(str(tmp_path / "saved"))
    with pytest.raises(UsageError, match=message):
        SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, local_files_only=True, **options)


def test_what_a_bundle_cannot_do_is_one_line(opened: Pair, tmp_path: Path) -> None:
    model, _ = opened()
    with pytest.raises(UsageError, match="one vector for each text"):
        model.encode("a", output_value="token_embeddings")
    with pytest.raises(UsageError, match="processing_kwargs"):
        model.encode("a", processing_kwargs={"text": {"max_length": 4}})
    with pytest.raises(TextError, match=r"texts\[0\] is tuple"):
        model.encode([("a", "pair")])
    with pytest.raises(BundleError, match="does not exist"):
        load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="wanted its directory, or an Encoder"):
        load(7)  # type: ignore[arg-type]
    module = model[0]
    assert isinstance(module, BundleModule)
    module.encoder.close()
    with pytest.raises(WhitenError, match="closed"):
        model.encode("a")


def test_models_can_be_pickled(opened: Pair) -> None:
    model, _ = opened()
    model.max_seq_length = 10
    again = pickle.loads(pickle.dumps(model))
    assert again.max_seq_length == 10
    assert worst(again.encode(TEXTS), model.encode(TEXTS)) <= ROUNDING


@pytest.mark.parametrize("bundle", ["bundle-v1", "bundle-v1-int8"])
@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_quantised_vectors_are_those_of_the_encoder(opened: Pair, bundle: str, precision: str) -> None:
    model, encoder = opened(bundle)
    for texts in (TEXTS, "a"):
        found, want = model.encode(texts, precision=precision), encoder.encode(texts, precision=precision)
        assert found.dtype == want.dtype
        assert np.mean(found != want) <= 0.001  # batches of other sizes round sums otherwise, seldom over a step
    alone = model.encode([TEXTS[0]], precision=precision)
    assert np.mean(alone[0] != model.encode(TEXTS, precision=precision)[0]) <= 0.05


@pytest.mark.parametrize("content", ["{", "[]", '{"max_seq_length": 0}', '{"max_seq_length": "a"}'])
def test_a_damaged_file_of_the_length_is_named(opened: Pair, tmp_path: Path, content: str) -> None:
    model, _ = opened()
    model.save_pretrained(str(tmp_path / "copy"))
    (tmp_path / "copy" / "sentence_bert_config.json").write_text(content)
    with pytest.raises(WhitenError, match=r"sentence_bert_config\.json"):
        SentenceTransformer(str(tmp_path / "copy"), trust_remote_code=True)


def test_a_model_is_not_saved_over_its_bundle_or_a_file(opened: Pair, tmp_path: Path) -> None:
    model, encoder = opened()
    before = (encoder.path / "modules.json").read_bytes()
    with pytest.raises(UsageError, match="is the bundle itself"):
        model.save_pretrained(str(encoder.path))
    assert (encoder.path / "modules.json").read_bytes() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file; name a directory"):
        model.save_pretrained(str(tmp_path / "file"))


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"precision": "uint8"}, {"convert_to_tensor": True}])
def test_a_text_without_a_vector_is_named_by_the_callers_index(
    golden: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """sentence-transformers sorts the texts by length, and cuts them into batches."""
    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    add_token_without_row(bundle, "<image>")
    model, long = load(bundle), "a long text " * 20
    with pytest.raises(NoVectorError, match=r"^texts\[1\] "):
        model.encode([long, "see <image> here", long, "short"], **options)
    with pytest.raises(NoVectorError, match=r"^texts\[0\] "):
        model.encode("see <image> here", **options)


def test_a_smaller_length_keeps_the_bound_of_characters(golden: Path) -> None:
    with Encoder(golden / "bundle-v1", max_characters=10) as encoder:
        model = load(encoder)
        before = model.encode("some words and more of them")
        model.max_seq_length = model.max_seq_length - 1
        np.testing.assert_array_equal(model.encode("some words and more of them"), before)
