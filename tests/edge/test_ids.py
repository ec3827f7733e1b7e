"""Test the token ids of the JavaScript client: those of the tokenizers of Rust, or a refusal."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from support.checkpoints import FAMILIES
from support.corpus import sentences
from support.edge import TEXTS, Call
from whiten_runtime.inference.tokenizer import Tokenizer as Ours

pytestmark = pytest.mark.slow

IN_PYTHON_ONLY = {"xlm"}
"""Families whose checkpoint has no tokenizer of Rust; an export writes one."""

SIDES = ("right", "left")
LENGTHS = (512, 9)


def of(model: Any, normalizer: Any = None, splitter: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if splitter is not None:
        tokenizer.pre_tokenizer = splitter
    return tokenizer


VOCABULARY = {"[UNK]": 0, "a": 1, "b": 2, "▁a": 3, " ": 4, "the ": 5, "c": 6}


@pytest.fixture(scope="module")
def files(
    checkpoint: Callable[..., Path], minilm_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """tokenizer.json of every family: WordPiece, byte-level BPE, Unigram, with SentencePiece's tables and without."""
    import transformers

    folder = tmp_path_factory.mktemp("tokenizers")
    checkpoints = {family: checkpoint(family) for family in FAMILIES if family not in IN_PYTHON_ONLY}
    made = {}
    for name, path in (checkpoints | {"minilm": minilm_checkpoint}).items():
        made[name] = folder / f"{name}.json"
        backend = transformers.AutoTokenizer.from_pretrained(path).backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        backend.save(str(made[name]))
    from support.published import save_published

    for name in ("embeddinggemma", "e5-mistral", "qwen3-embedding-0.6b", "multilingual-e5-base", "gtr-base"):
        made[name] = save_published(name, folder / name) / "tokenizer.json"
    backend = of(
        models.WordLevel(VOCABULARY, "[UNK]"), normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    )
    for behavior in ("removed", "isolated", "merged_with_previous"):
        for inverted in (False, True):
            backend.pre_tokenizer = pre_tokenizers.Split(Regex("[ab]+"), behavior, inverted)
            made[f"{behavior} {inverted}"] = folder / f"{behavior}-{inverted}.json"
            backend.save(str(made[f"{behavior} {inverted}"]))
    return made


def test_ids_of_every_family(files: dict[str, Path], node: Call) -> None:
    texts = [*TEXTS, *sentences(300)]
    ways = [(side, length) for side in SIDES for length in LENGTHS]
    given = {
        f"{name} {side} {length}": {"file": str(path), "manifest": {"max_seq_length": length, "truncation_side": side}}
        for name, path in files.items()
        for side, length in ways
    }
    got = node("ids.mjs", {"tokenizers": given, "texts": texts})
    for name, path in files.items():
        for side, length in ways:
            ours = Ours(path, length, side)
            want = [ours.cut(row) for row in ours.tokenize(texts)]
            differ = [text for text, a, b in zip(texts, got[f"{name} {side} {length}"], want, strict=True) if a != b]
            assert not differ, (name, side, length, differ)


def changed(file: Path, folder: Path, change: Callable[[Any], Any]) -> Path:
    content = json.loads(file.read_text("utf-8"))
    change(content)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content), "utf-8")
    return path


@pytest.mark.parametrize(
    ("tokenizer", "what"),
    [
        (of(models.WordLevel(VOCABULARY, "[UNK]"), normalizers.Nmt()), "normalizer Nmt"),
        (
            of(models.WordLevel(VOCABULARY, "[UNK]"), None, pre_tokenizers.UnicodeScripts()),
            "pre-tokenizer UnicodeScripts",
        ),
        (of(models.WordLevel(VOCABULARY, "[UNK]"), None, pre_tokenizers.Digits()), "pre-tokenizer Digits"),
        (of(models.WordLevel(VOCABULARY, "[UNK]"), None, pre_tokenizers.Whitespace()), "pre-tokenizer Whitespace"),
        (
            of(models.WordLevel(VOCABULARY, "[UNK]"), None, pre_tokenizers.Split(Regex("a"), "merged_with_next")),
            "splits by MergedWithNext",
        ),
        (of(models.BPE(VOCABULARY, [], dropout=0.1)), "is a BPE"),
        (of(models.Unigram([("a", -1.0)], None, True)), "is a Unigram"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_may_differ_is_refused(tokenizer: Tokenizer, what: str, tmp_path: Path, node: Call) -> None:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    given = {"t": {"file": str(tmp_path / "tokenizer.json"), "manifest": {"max_seq_length": 8}}}
    found = node("ids.mjs", {"tokenizers": given, "texts": ["a"]})["t"]
    assert found["error"] == "BundleError"
    assert what in found["message"]
    assert "use whiten in Python" in found["message"]


def test_words_alone_and_no_room_are_refused(files: dict[str, Path], tmp_path: Path, node: Call) -> None:
    tokenizer = Tokenizer.from_file(str(files["bert"]))
    tokenizer.add_tokens([AddedToken("whole", single_word=True)])
    tokenizer.save(str(tmp_path / "words.json"))
    given = {
        "words": {"file": str(tmp_path / "words.json"), "manifest": {"max_seq_length": 8}},
        "room": {"file": str(files["bert"]), "manifest": {"max_seq_length": 2}},
        "none": {"file": str(changed(files["bert"], tmp_path, dict.clear)), "manifest": {"max_seq_length": 8}},
    }
    found = node("ids.mjs", {"tokenizers": given, "texts": ["a"]})
    assert {one["error"] for one in found.values()} == {"BundleError"}
    assert "'whole' for whole words" in found["words"]["message"]
    assert "adds 2 special tokens" in found["room"]["message"]
