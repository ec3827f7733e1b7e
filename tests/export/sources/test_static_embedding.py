"""Test tables of token vectors: their tokenizer, their graph and what is refused. Nothing needs torch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from tokenizers import Tokenizer

from support.checkpoints import write_json, write_modules, write_tensors
from support.cli import ok
from support.vocabularies import wordpiece
from whiten import Encoder, WhitenError
from whiten_export.sources.open_model import choose_max_seq_length, open_model
from whiten_export.sources.resolve import resolve
from whiten_export.sources.tables import StaticEmbedding

WIDTH = 5
TEXTS = ["", "a text", "word " * 30]
Made = Callable[..., Path]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Return a function that writes the folder of a static embedding."""

    def make(rows: int | None = None, change: Callable[[Tokenizer], object] = lambda tokenizer: None) -> Path:
        tokenizer = wordpiece()
        change(tokenizer)
        folder = write_modules(tmp_path / "potion", "StaticEmbedding", "Normalize")
        tokenizer.save(str(folder / "tokenizer.json"))
        count = tokenizer.get_vocab_size() if rows is None else rows
        table = np.random.default_rng(1).normal(size=(count, WIDTH)).astype(np.float32)
        write_tensors(folder / "model.safetensors", {"embedding.weight": table})
        return folder

    return make


def opened(folder: Path) -> StaticEmbedding:
    return StaticEmbedding(resolve(str(folder)), "cpu")


def test_texts_of_any_length_get_no_special_tokens_and_no_padding(made: Made) -> None:
    tokenizer = opened(made(change=lambda own: own.enable_padding(length=50))).tokenizer
    assert tokenizer.stated_length == 1 << 20
    written = Tokenizer.from_str(tokenizer.json)
    assert tokenizer.special_tokens == 0
    written.no_padding()
    assert tokenizer.own_ids(TEXTS, 1000) == [written.encode(text).ids for text in TEXTS]
    assert tokenizer.own_ids([""], 1000) == [[]]
    assert [len(ids) for ids in tokenizer.own_ids(TEXTS, 3)][-1] == 3


@pytest.mark.parametrize("side", ["right", "left"])
def test_truncation_of_the_tokenizer_is_kept(made: Made, side: str) -> None:
    folder = made(change=lambda own: own.enable_truncation(4, direction=side))
    tokenizer = opened(folder).tokenizer
    assert (tokenizer.stated_length, tokenizer.truncation_side) == (4, side)
    plain = Tokenizer.from_str(tokenizer.json)
    plain.no_truncation()
    ids = plain.encode(TEXTS[-1], add_special_tokens=False).ids
    for length in (4, 3, 10):
        kept = ids[:length] if side == "right" else ids[-length:]
        assert tokenizer.own_ids(TEXTS[-1:], length) == [kept]


def test_a_table_with_too_few_rows_is_refused(made: Made) -> None:
    folder = made(rows=50)
    with pytest.raises(WhitenError, match="50 rows"):
        open_model(resolve(str(folder)))


@pytest.mark.parametrize("content", [b"", b'{"model": {}}', b"\xff", None])
def test_a_broken_or_missing_tokenizer_is_refused_in_one_line(made: Made, content: bytes | None) -> None:
    folder = made()
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(WhitenError, match="tokenizer") as caught:
        opened(folder)
    assert "\n" not in str(caught.value)


def save_model2vec(folder: Path, kind: str, tokenizer: Tokenizer) -> np.ndarray:
    """Write a folder of model2vec without modules.json, and return the row of each token, float64."""
    generator, count = np.random.default_rng(1), tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    table = generator.normal(size=(count if kind != "mapping" else 50, WIDTH)).astype(np.float32)
    tensors = {"embeddings": table}
    if kind == "int8":
        tensors["embeddings"] = (40 * table).astype(np.int8)
    elif kind == "float16":
        tensors["embeddings"] = table.astype(np.float16)
    if kind in ("weights", "mapping"):
        tensors["weights"] = generator.uniform(0.1, 2, count)
    if kind == "mapping":
        tensors["mapping"] = generator.integers(0, 50, count)
    write_tensors(folder / "model.safetensors", tensors)
    settings = {"model_type": "model2vec"} if kind == "plain" else {}
    write_json(folder / "config.json", settings | {"normalize": kind != "int8", "embedding_dtype": kind})
    rows = tensors["embeddings"].astype(np.float64)
    rows = rows[tensors["mapping"]] if "mapping" in tensors else rows
    return rows * tensors["weights"][:, None] if "weights" in tensors else rows


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "weights", "mapping", "int8", "float16"])
def test_a_folder_of_model2vec_alone_gives_its_vectors(kind: str, tmp_path: Path) -> None:
    """The mean of the tokens that are known, of the first 512; model2vec itself is asked where it is installed."""
    tokenizer = wordpiece()
    table = save_model2vec(tmp_path, kind, tokenizer)
    ok("export", tmp_path, "--out", tmp_path / "bundle")
    texts = ["The cat sits on the mat.", "a \u2603 b \u2603\u2603", "\u2603", "", "word \u2603 " * 400]
    unknown, want = tokenizer.token_to_id("[UNK]"), []
    for text in texts:
        ids = [one for one in tokenizer.encode(text, add_special_tokens=False).ids[:512] if one != unknown]
        mean = table[ids].mean(axis=0) if ids else np.zeros(WIDTH)
        want.append(mean / max(np.linalg.norm(mean), 1e-12) if kind != "int8" else mean)
    with Encoder(tmp_path / "bundle") as encoder:
        got = encoder.encode(texts)
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-6)
    try:
        from model2vec import StaticModel
    except ImportError:
        return
    theirs = StaticModel.from_pretrained(tmp_path).encode(texts)  # which adds float16 in float16
    np.testing.assert_allclose(got, theirs, atol=1e-3 if kind == "float16" else 1e-5, rtol=1e-6)


@pytest.mark.parametrize("truncation", [None, {"max_length": 4, "direction": "left"}])
@pytest.mark.parametrize(("settings", "length"), [({}, 512), ({"max_length": None}, 8192), ({"max_length": 3}, 3)])
def test_model2vec_cuts_by_its_config_and_from_the_right(
    tmp_path: Path, truncation: dict[str, Any] | None, settings: dict[str, Any], length: int
) -> None:
    tokenizer = wordpiece()
    if truncation is not None:
        tokenizer.enable_truncation(**truncation)
    save_model2vec(tmp_path, "plain", tokenizer)
    config = json.loads((tmp_path / "config.json").read_text())
    write_json(tmp_path / "config.json", config | settings)
    model = open_model(resolve(str(tmp_path)))
    assert choose_max_seq_length(model, None) == length
    tokenizer.no_truncation()
    ids = tokenizer.encode("one two three four five", add_special_tokens=False).ids
    assert model.tokenizer.truncation_side == "right"
    assert model.tokenizer.own_ids(["one two three four five"], length) == [ids[:length]]


def test_with_modules_json_unknown_tokens_count_as_in_sentence_transformers(made: Made, tmp_path: Path) -> None:
    model = opened(made())
    assert model.checkpoint.authors is not None
    assert model.checkpoint.authors.stated_by == "sentence-transformers"
    save_model2vec(tmp_path, "plain", wordpiece())
    authors = resolve(str(tmp_path)).authors
    assert authors is not None
    assert (authors.stated_by, authors.normalize, authors.max_length) == ("model2vec", True, 512)


def test_a_table_with_and_without_unknown_tokens_is_two_networks(tmp_path: Path) -> None:
    """Vectors of texts with unknown tokens differ."""
    alone, listed = tmp_path / "alone", write_modules(tmp_path / "listed", "StaticEmbedding", "Normalize")
    alone.mkdir()
    for folder in (alone, listed):
        save_model2vec(folder, "plain", wordpiece())
    one, other = (opened(folder).record for folder in (alone, listed))
    assert one.weights_sha256 == other.weights_sha256
    assert one.network_sha256 != other.network_sha256
    assert opened(alone).record.network_sha256 == one.network_sha256


def test_the_graph_and_the_reference_look_up_the_same_rows(made: Made) -> None:
    model = opened(made())
    hidden = model.hidden_states((0,), "mean")
    graph = ir.Model(hidden.model.graph, ir_version=10)
    graph.graph.outputs[:] = list(hidden.states)
    session = onnxruntime.InferenceSession(ir.to_proto(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    ids, mask = np.array([[5, 6, 7], [8, 0, 0]]), np.array([[1, 1, 1], [1, 0, 0]])
    (states,) = session.run([hidden.states[0].name], {"input_ids": ids, "attention_mask": mask})
    pooled = model.reference((0,), "mean").pooled(ids, mask)
    np.testing.assert_allclose(pooled[0], [states[0].mean(axis=0), states[1, 0]], rtol=1e-6)
    assert (model.record.model_type, model.record.hidden_size, model.record.num_hidden_layers) == ("static", WIDTH, 0)
