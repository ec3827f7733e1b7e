"""Test that embedding models come out as published: every folder through the command, beside sentence-transformers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

from support.cli import ok
from support.once import once
from support.published import TEXTS, peer, save_published
from whiten import Encoder
from whiten_export.bundle_files import write_tokenizer
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe
from whiten_export.sources.open_model import choose_max_seq_length, open_model
from whiten_export.sources.resolve import resolve
from whiten_runtime.bundle.manifest import Precision
from whiten_runtime.bundle.parity import GATES, compare
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_whitening import choosing as development
from whiten_whitening.choosing import Choice

pytestmark = pytest.mark.slow

PUBLISHED = (
    "bge-small",
    "e5-mistral",
    "multilingual-e5-small",
    "multilingual-e5-base",
    "gte-modernbert",
    "gte-multilingual",
    "qwen3-embedding-0.6b",
    "nomic-v1.5",
    "embeddinggemma",
    "all-mpnet",
    "distiluse",
    "labse",
    "instructor",
    "static-retrieval",
)
"""One entry of the catalogue for each architecture, pooling and kind of module."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return lambda name: once(tmp_path_factory, f"published-{name}", lambda path: save_published(name, path))


@pytest.mark.parametrize("name", PUBLISHED)
def test_folder_gives_the_vectors_of_sentence_transformers(
    folder: Callable[[str], Path], name: str, check_export: Callable[..., None], tmp_path: Path
) -> None:
    check_export(folder(name), tmp_path / "bundle", TEXTS)


def test_naming_layers_says_what_is_left_out(folder: Callable[[str], Path], tmp_path: Path) -> None:
    """The Dense belongs to the last layer and is left out with others; a whitening takes the place of Normalize."""
    options = ("--max-sentences", "400", "--out")
    result = ok("export", folder("labse"), "--layers", "0,1", *options, tmp_path / "layers")
    line = next(line for line in result.stderr.splitlines() if "left out" in line)
    assert "left out, as made for the model's own layer and pooling: Dense(" in line
    assert "Normalize" not in line
    described = json.loads((tmp_path / "layers" / "whiten.json").read_text())
    assert (described["modules"], described["normalize"], described["published"]) == ([], False, None)
    assert described["whitening"]["method"] == "pca"
    result = ok("export", folder("labse"), "--whitening", "pca", *options, tmp_path / "whitened")
    with Encoder(tmp_path / "whitened") as encoder:
        manifest = encoder.manifest
        assert (len(manifest.modules), manifest.normalize, manifest.whitening is not None) == (1, False, True)
        assert manifest.published is not None  # up to the whitening
        *modules, _ = peer(folder("labse"))  # all but Normalize
        raw = SentenceTransformer(modules=modules, device="cpu").encode(TEXTS, batch_size=1)
        stored = load_file(tmp_path / "whitened" / "whitening.safetensors")
        assert GATES["fp32"].passes(compare(encoder.encode(TEXTS), (raw - stored["mean"]) @ stored["W"]))
    assert "sentence-transformers" not in result.stderr


def test_vectors_that_auto_does_not_whiten_are_normalised_as_published(
    folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(development, "choose_by_pairs", lambda *arguments: Choice(None, "not whitened", ()))
    pairs = tmp_path / "pairs.tsv"
    lines = "".join(f"{number % 5}.0\tThe cat {number}.\tA dog {number}.\n" for number in range(30))
    pairs.write_text(f"score\tsentence1\tsentence2\n{lines}", "utf-8")
    recipe = Recipe(str(folder("bge-small")), whitening="auto", dev=str(pairs), max_sentences=300)
    with Encoder(export_bundle(recipe, tmp_path / "bundle").path) as encoder:
        assert (encoder.manifest.normalize, encoder.manifest.whitening) == (True, None)
        want = peer(folder("bge-small")).encode(TEXTS, batch_size=1)
        assert GATES["fp32"].passes(compare(encoder.encode(TEXTS), want))


def test_published_model_is_kept_where_no_whitening_is_named(folder: Callable[[str], Path], tmp_path: Path) -> None:
    for options in (("--whitening", "none"), ("--whitening", "auto"), ("--layers", "-1", "--whitening", "none")):
        out = tmp_path / "-".join(options).replace(" ", "")
        ok("export", folder("bge-small"), *options, "--out", out)
        with Encoder(out) as encoder:
            assert encoder.manifest.normalize
            want = peer(folder("bge-small")).encode(TEXTS, batch_size=1)
            assert GATES["fp32"].passes(compare(encoder.encode(TEXTS), want))


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_lower_precisions_keep_direction_and_norm(
    folder: Callable[[str], Path], precision: Precision, tmp_path: Path
) -> None:
    recipe = Recipe(str(folder("labse")), precision=precision)
    with Encoder(export_bundle(recipe, tmp_path / "bundle").path) as encoder:
        want = peer(folder("labse")).encode(TEXTS, batch_size=1)
        assert GATES[precision].passes(compare(encoder.encode(TEXTS), want))


@pytest.mark.parametrize("name", PUBLISHED)
def test_tokens_are_those_of_sentence_transformers(folder: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    """Texts around the maximum length, and the tokens that end a text: once, where the model's tokenizer adds them."""
    model = peer(folder(name))
    checkpoint = resolve(str(folder(name)))
    source = open_model(checkpoint)
    length = choose_max_seq_length(source, None)
    write_tokenizer(tmp_path, source.tokenizer, length)
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", length, source.tokenizer.truncation_side)
    words = ["a"] * 70
    texts = [*TEXTS, *(" ".join(words[:count]) for count in range(1, 70))]
    got = [source.tokenizer.plain(tokenizer.cut(row)) for row in tokenizer.tokenize(texts)]
    if source.record.model_type == "static":
        want = [found.ids for found in model[0].tokenizer.encode_batch(texts, add_special_tokens=False)]
    else:
        features = [model.preprocess([text]) for text in texts]
        want = [found["input_ids"][0][found["attention_mask"][0] > 0].tolist() for found in features]
        assert length == model.max_seq_length
        assert {len(row) for row in got} > {length - 1, length}
        last = model.tokenizer.eos_token_id
        if last is not None and any(row[-1] == last for row in want):
            assert all(row.count(last) == 1 for row in got[len(TEXTS) :])
    assert got == want
