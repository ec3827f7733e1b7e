"""Compare each argument of `encode` with the real SentenceTransformer.encode, which computes the same vectors."""

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.base.modules import InputModule

from support.bundles import copy_bundle
from support.corpus import sentences
from support.families import WIDTH
from whiten import Encoder
from whiten_runtime.bundle.manifest import NESTED_METHODS
from whiten_runtime.inference.options import EncodeOptions

pytestmark = pytest.mark.slow

TEXTS = [*sentences(40), "", "日本 👩‍👧"]
PROMPTS = {"query": "query: ", "document": "document: ", "sts": "similar: "}
METHODS = ["encode", "encode_query", "encode_document"]


class Vectors(InputModule):
    """Gives the vectors of an encoder to sentence-transformers, each text computed alone."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **options: Any) -> dict[str, Any]:
        rows = [self.encoder.encode(text, prompt=prompt or "") for text in inputs]
        return {"sentence_embedding": torch.from_numpy(np.stack(rows))}

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        return features

    def save(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError

    def get_embedding_dimension(self) -> int:
        return self.encoder.dimension

    max_seq_length = 48


@pytest.fixture(scope="module")
def encoder(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    bundle = copy_bundle(
        golden / "bundle-v1", tmp_path_factory.mktemp("prompted"), prompts=PROMPTS, default_prompt_name="sts"
    )
    with Encoder(bundle, threads=1) as opened:
        assert opened.manifest.whitening is not None
        assert opened.manifest.whitening.method in NESTED_METHODS
        yield opened


@pytest.fixture(scope="module")
def model(encoder: Encoder) -> SentenceTransformer:
    return SentenceTransformer(
        modules=[Vectors(encoder)], prompts=PROMPTS, default_prompt_name="sts", device="cpu"
    )  # fmt: skip


def check_same(got: Any, want: Any, exact: bool = False) -> None:
    """Check that results have one type, shape and dtype, and the same numbers to the rounding of float32."""
    assert type(got) is type(want)
    if isinstance(want, list):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            check_same(one, other, exact)
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if isinstance(want, torch.Tensor):
        assert got.device == want.device
    got, want = np.asarray(got), np.asarray(want)
    if exact or want.dtype == np.float32:
        np.testing.assert_allclose(got, want, rtol=0, atol=0 if exact else 1e-4 * np.abs(want).max())
    else:  # coordinates that lie on the border of two steps
        assert (got != want).sum() <= max(1, got.size // 1000)


SAME: list[dict[str, Any]] = [
    {},
    {"prompt_name": "query"},
    {"prompt_name": "sts"},
    {"prompt": "other: "},
    {"prompt": ""},
    {"batch_size": 3},
    {"show_progress_bar": True},
    {"show_progress_bar": False},
    {"show_progress_bar": None},
    {"precision": "float32"},
    {"precision": "binary"},
    {"precision": "ubinary"},
    {"convert_to_numpy": True},
    {"convert_to_numpy": False},
    {"convert_to_tensor": True},
    {"convert_to_tensor": True, "convert_to_numpy": True},
    {"convert_to_tensor": True, "convert_to_numpy": False},
    {"convert_to_tensor": True, "precision": "ubinary"},
    {"convert_to_numpy": False, "precision": "binary"},
    {"device": "cpu"},
    {"device": torch.device("cpu")},
    {"normalize_embeddings": True},
    {"truncate_dim": 12},
    {"truncate_dim": 12, "normalize_embeddings": True},
    {"truncate_dim": 12, "precision": "binary"},
    {"truncate_dim": WIDTH},
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("arguments", SAME, ids=str)
def test_arguments_do_what_they_do_there(
    encoder: Encoder, model: SentenceTransformer, method: str, arguments: dict[str, Any]
) -> None:
    ours, theirs = getattr(encoder, method), getattr(model, method)
    check_same(ours(TEXTS, **arguments), theirs(TEXTS, **arguments))
    check_same(ours(TEXTS[0], **arguments), theirs(TEXTS[0], **arguments))


def test_arguments_that_both_have_mean_the_same_when_left_out() -> None:
    known = {**inspect.signature(EncodeOptions.of).parameters, **inspect.signature(Encoder.encode).parameters}
    theirs = inspect.signature(SentenceTransformer.encode).parameters
    assert set(theirs) - set(known) == {"inputs", "output_value", "pool", "chunk_size", "kwargs"}
    for name in known.keys() & theirs.keys() - {"batch_size", "show_progress_bar"}:
        assert known[name].default == theirs[name].default or name == "self", name


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary", "float32"])
@pytest.mark.parametrize("options", [{}, {"normalize_embeddings": True}, {"truncate_dim": 12}], ids=str)
def test_codes_are_those_of_quantize_embeddings(encoder: Encoder, precision: Any, options: dict[str, Any]) -> None:
    vectors, ranges = encoder.encode(TEXTS, **options), encoder.ranges(**options)
    own = encoder.encode(TEXTS, precision=precision, **options)
    check_same(own, util.quantize_embeddings(vectors, precision, ranges=ranges), exact=True)
    if precision.endswith("int8"):
        narrow = np.stack([vectors.min(axis=0) / 2, vectors.max(axis=0) / 2])  # most vectors have something outside
        given = encoder.encode(TEXTS, precision=precision, ranges=narrow, **options)
        check_same(given, util.quantize_embeddings(vectors, precision, ranges=narrow), exact=True)
        assert not np.array_equal(own, given)


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_with_the_ranges_of_their_batch_codes_are_theirs(
    encoder: Encoder, model: SentenceTransformer, precision: Any
) -> None:
    vectors = model.encode(TEXTS)
    ranges = np.stack([vectors.min(axis=0), vectors.max(axis=0)])
    for extra in ({}, {"convert_to_tensor": True}, {"convert_to_numpy": False}):
        want = model.encode(TEXTS, precision=precision, **extra)
        check_same(encoder.encode(TEXTS, precision=precision, ranges=ranges, **extra), want)


def test_a_code_does_not_depend_on_neighbours_here(encoder: Encoder, model: SentenceTransformer) -> None:
    few = TEXTS[:20]
    theirs = model.encode(TEXTS, precision="uint8")[:20], model.encode(few, precision="uint8")
    ours = encoder.encode(TEXTS, precision="uint8")[:20], encoder.encode(few, precision="uint8")
    assert (theirs[0] != theirs[1]).mean() > 0.5
    assert (ours[0] != ours[1]).mean() < 0.001
    with pytest.raises(ValueError, match="from a single embedding"):
        model.encode(few[0], precision="uint8")
    assert (encoder.encode(few[0], precision="uint8") == ours[0][0]).mean() > 0.9


def test_no_texts_give_no_rows(encoder: Encoder, model: SentenceTransformer) -> None:
    """Theirs lose the number of columns: float64 [0]. Ours can be stacked with others."""
    assert model.encode([]).shape == (0,)
    for precision, columns in (("float32", WIDTH), ("int8", WIDTH), ("ubinary", WIDTH // 8)):
        tensor = encoder.encode([], precision=precision, convert_to_tensor=True)
        assert encoder.encode([], precision=precision).shape == tuple(tensor.shape) == (0, columns)
    assert encoder.encode([], convert_to_numpy=False) == model.encode([], convert_to_numpy=False) == []


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities(golden: Path, tmp_path: Path, name: Any) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path, similarity_fn_name=name)
    with Encoder(bundle) as encoder:
        model = SentenceTransformer(modules=[Vectors(encoder)], similarity_fn_name=name, device="cpu")
        a, b = encoder.encode(TEXTS[:20]), encoder.encode(TEXTS[20:40])
        assert encoder.similarity_fn_name == model.similarity_fn_name == name
        for compare in ("similarity", "similarity_pairwise"):
            for one, other in ((a, b), (a[0], b[0])):
                want = getattr(model, compare)(one, other).numpy()
                got = getattr(encoder, compare)(one, other)
                assert (got.shape, got.dtype) == (want.shape, want.dtype)
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
                tensors = getattr(encoder, compare)(torch.from_numpy(one), list(torch.from_numpy(np.atleast_2d(other))))
                np.testing.assert_array_equal(tensors.ravel(), got.ravel())


@pytest.mark.filterwarnings("ignore")
def test_what_a_model_says_of_itself(encoder: Encoder, model: SentenceTransformer) -> None:
    assert encoder.get_sentence_embedding_dimension() == model.get_sentence_embedding_dimension()
    assert encoder.get_embedding_dimension() == model.get_embedding_dimension()
    assert encoder.get_max_seq_length() == model.get_max_seq_length()
    assert encoder.device == str(model.device)
    assert encoder.prompts == {name: text for name, text in model.prompts.items() if text}
    assert encoder.default_prompt_name == model.default_prompt_name
