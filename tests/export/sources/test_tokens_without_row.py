"""Test special tokens of a tokenizer for which the embeddings have no row."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from support.checkpoints import save_checkpoint
from support.cli import ok
from support.vocabularies import byte_bpe, word_tokenizer, wordpiece
from whiten import Encoder
from whiten_export.sources.tokenizer import SourceTokenizer, specials_without_row, without_tokens

NEW = ("<image>", "[audio]", "<|tool call|>")
TEXTS = ["", "a text", "see <image> here", "<image><image>", "[audio]", "x<|tool call|>y", "[MASK] <mask> [UNK] <s>"]
TOKENIZERS = {
    "wordpiece": wordpiece,
    "byte-level BPE": byte_bpe,
    "unigram": lambda: word_tokenizer(
        models.Unigram([("<unk>", 0.0), *((letter, -3.0) for letter in "aetx<>")], 0), True
    ),
    "words": lambda: word_tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "text": 2, "image": 3}, "[UNK]"), True),
}


def described(backend: Tokenizer, **specials: str) -> SourceTokenizer:
    return SourceTokenizer(backend.to_str(), lambda texts, length: [], 0, specials, None)


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS)
def test_texts_with_the_token_are_read_as_other_characters(make: object) -> None:
    backend = make()  # type: ignore[operator]
    rows = backend.get_vocab_size()
    plain = [backend.encode(text).ids for text in TEXTS]
    backend.add_special_tokens(list(NEW))
    tokenizer = described(backend, mask_token="<image>", unk_token="[UNK]")
    assert max(max(backend.encode(text).ids, default=0) for text in TEXTS) >= rows
    assert specials_without_row(tokenizer, rows) == NEW
    assert specials_without_row(tokenizer, rows + 1) == NEW[1:]
    written = without_tokens(tokenizer, NEW)
    reopened = Tokenizer.from_str(written.json)
    assert [reopened.encode(text).ids for text in TEXTS] == plain
    assert written.specials == {"unk_token": "[UNK]"}
    assert specials_without_row(written, rows) == ()


def test_token_of_the_vocabulary_itself_is_removed_there_too() -> None:
    vocabulary = {"[UNK]": 0, "a": 1, "<image>": 2}
    backend = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<image>"])
    assert backend.encode("a <image>").ids == [1, 2]
    tokenizer = described(backend)
    assert specials_without_row(tokenizer, 2) == ("<image>",)
    written = Tokenizer.from_str(without_tokens(tokenizer, ("<image>",)).json)
    assert written.encode("a <image>").ids == [1, 0]
    assert written.token_to_id("<image>") is None


@pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=pytest.mark.slow)])
def test_bundle_embeds_texts_with_such_a_token(tmp_path: Path, precision: str) -> None:
    from transformers import AutoTokenizer

    folder = save_checkpoint("bert", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    options = ("--layers", 2, "--whitening", "none", "--precision", precision)
    ok("export", folder, "--out", tmp_path / "before", *options)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(folder)
    assert "'<image>'" in ok("export", folder, "--out", tmp_path / "after", *options).stderr
    texts = ["fine", "see <image> here", "<image>", "fine"]
    with Encoder(tmp_path / "before") as before, Encoder(tmp_path / "after") as after:
        np.testing.assert_array_equal(after.encode(texts), before.encode(texts))
    for name in ("onnx/model.onnx", "tokenizer.json", "special_tokens_map.json"):
        assert (tmp_path / "after" / name).read_bytes() == (tmp_path / "before" / name).read_bytes()
