"""Test real weights that packages of the index hold, beside all-MiniLM-L6-v2 and all-mpnet-base-v2."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer

from support.cli import ok, refused
from support.corpus import sentences
from support.once import once
from support.real_weights import real_weights
from support.vectors import worst as worst_of
from whiten import Encoder
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.parity import GATES

pytestmark = pytest.mark.filterwarnings("ignore")

Vectors = NDArray[np.floating]

TEXTS = [
    *sentences(20),
    *(
        "",
        " ",
        "\t\n",
        "long " * 600,
        "Ünïcödé cafe\u0301 日本語 한국어 ไทย עברית 👩‍👧",
        "[MASK] </s> [SEP]",
        "A\ufeffb\u200bc",
    ),
]
MOLECULES = ["CC(=O)Oc1ccccc1C(=O)O", "C" * 700, "BrCCBr.[Na+]>>C=C", "N#Cc1ccc(Cl)cc1", ""]
ANTIBODIES = [
    "E V Q L V E S G G G L V Q P G G S L R L S C A A S",
    "D I Q M T Q S P S S L S A S V G D R V T I T C",
    "A X Z",
]
LAST_LAYER = ("--layers", "-1", "--whitening", "none")


def of_sentence_transformers(folder: Path, texts: Sequence[str]) -> Vectors:
    return np.asarray(SentenceTransformer(str(folder), device="cpu").encode(list(texts), batch_size=1))


def of_transformers(folder: Path, texts: Sequence[str]) -> Vectors:
    """Return the means of the last hidden states, of one text at a time."""
    network, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        rows = [tokenizer(text, truncation=True, max_length=512, return_tensors="pt") for text in texts]
        return np.stack([network(**row).last_hidden_state[0].mean(axis=0).numpy() for row in rows])


def of_its_graph(folder: Path, texts: Sequence[str]) -> Vectors:
    """Return what the graph in paraphrase-MiniLM-L3-v2's package computes of one text at a time."""
    session = onnxruntime.InferenceSession(folder.parent / "package" / "paraphrase-MiniLM-L3-v2.onnx")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(128)
    rows = [np.array([tokenizer.encode(text).ids]) for text in texts]
    feeds = [{"input_ids": row, "attention_mask": np.ones_like(row)} for row in rows]
    return np.concatenate([session.run(["461"], feed)[0] for feed in feeds])


def of_model2vec(folder: Path, texts: Sequence[str]) -> Vectors:
    """Return what model2vec computes: weighted means of the tokens that are known, divided by their norms."""
    tensors, tokenizer = load_file(folder / "model.safetensors"), Tokenizer.from_file(str(folder / "tokenizer.json"))
    table = (
        tensors["embeddings"].astype(np.float32)[tensors["mapping"]] * tensors["weights"].astype(np.float32)[:, None]
    )
    unknown = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["unk_id"]
    rows = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    means = [table[[number for number in row if number != unknown]].mean(axis=0) for row in rows]
    return np.stack([mean / np.linalg.norm(mean) for mean in means])


Reference = Callable[[Path, Sequence[str]], Vectors]

MODELS: dict[str, tuple[Reference, Sequence[str], Sequence[str]]] = {
    "rxnmapper": (of_transformers, MOLECULES, LAST_LAYER),
    "paraphrase-minilm-l3": (of_its_graph, TEXTS, ()),
    "antiberty": (of_transformers, ANTIBODIES, LAST_LAYER),
    "distilbert-cased": (of_transformers, TEXTS, LAST_LAYER),
    "sre-embedding-model": (of_sentence_transformers, TEXTS, ()),
    "multilingual-e5-small": (of_sentence_transformers, TEXTS, ()),
    "tokenlearn": (of_model2vec, sentences(20), ()),
}
QUICK = "paraphrase-minilm-l3"


@pytest.mark.parametrize(
    "name", [each if each == QUICK else pytest.param(each, marks=pytest.mark.slow) for each in MODELS]
)
def test_vectors_are_those_of_the_authors_programs(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = real_weights(name)
    theirs, texts, options = MODELS[name]
    bundle = once(tmp_path_factory, name, lambda path: ok("export", folder, *options, "--out", path))
    with Encoder(bundle) as encoder:
        expected = theirs(folder, texts)
        np.testing.assert_allclose(encoder.encode(list(texts)), expected, rtol=0, atol=5e-6 * np.abs(expected).max())


def test_whitened_vectors_equal_pytorch_in_any_batch(tmp_path: Path) -> None:
    choices = ("--layers", "1,3", "--whitening", "pca", "--max-sentences", "800")
    ok("export", real_weights(QUICK), *choices, "--out", tmp_path / "bundle")
    generator = np.random.default_rng(0)
    with Encoder(tmp_path / "bundle") as encoder:
        agreement = encoder.verify()
        assert GATES["fp32"].passes(agreement)
        assert agreement.max_difference < 5e-6, str(agreement)
        alone = np.stack([encoder.encode(text) for text in TEXTS])
        for size in (2, 7, 20):
            order = generator.permutation(len(TEXTS))
            mixed = encoder.encode([TEXTS[index] for index in order], batch_size=size)
            assert worst_of(mixed, alone[order]) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "worst", "mean"),
    [
        ("paraphrase-minilm-l3", 0.997, 0.999),
        ("antiberty", 0.99, 0.998),
        ("distilbert-cased", 0.995, 0.999),
        ("sre-embedding-model", 0.994, 0.998),
        ("multilingual-e5-small", 0.998, 0.999),
    ],
)
def test_int8_is_as_near_as_it_was(
    name: str, worst: float, mean: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = real_weights(name)
    options = (*MODELS[name][2], "--precision", "int8")
    bundle = once(tmp_path_factory, f"{name}-int8", lambda path: ok("export", folder, *options, "--out", path))
    parity = read_manifest(bundle).parity
    assert (parity.min_cosine >= worst, parity.mean_cosine >= mean) == (True, True), parity


@pytest.mark.slow
def test_int8_that_loses_too_much_is_refused(tmp_path: Path) -> None:
    """As that of rxnmapper, whose twelve layers share their weights."""
    message = refused(
        "export", real_weights("rxnmapper"), *LAST_LAYER, "--precision", "int8", "--out", tmp_path / "b", code=1
    )
    assert "int8" in message
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("name", ["rxnmapper", pytest.param("antiberty", marks=pytest.mark.slow)])
def test_a_package_without_a_tokenizer_is_refused(name: str, tmp_path: Path) -> None:
    """As two packages are: the one has a vocabulary that only its own code reads, the other one in another folder."""
    message = refused("export", real_weights(name).parent / "package", *LAST_LAYER, "--out", tmp_path / "b", code=2)
    assert "has no tokenizer" in message
