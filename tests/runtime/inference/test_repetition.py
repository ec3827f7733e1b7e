"""Test which regular expressions of tokenizers are refused, because a text could take them hours."""

import json
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from support.bundles import copy_bundle, rewrite_file
from whiten import BundleError, Encoder
from whiten_runtime.inference.repetition import check_ends, repeats_repetition


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            r"(a+)+$",
            r"(?:a*)*",
            r"((ab)+c?)+x",
            r"(x|y+){2,}",
            r"(?<n>a+b{0,2})*",
            r"(?=(a+)+)b",
            r"((a+)?)*",
            r"((a+){2})+",
            r"(a|(b|c*)d?)+",
        ),
        *(r"[+]+(a+)+", r"(\p{L}+)*", r"(?i:a+)+", r"(a+?)+"),
    ],
)
def test_a_repetition_that_is_repeated(pattern: str) -> None:
    assert repeats_repetition(pattern)


@pytest.mark.parametrize(
    "pattern",
    [  # of GPT-4, o200k, BLOOM, Falcon, Command R, SentencePiece and DeepSeek
        r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"'(?i:[sdmt]|ll)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r" ?[^(\s|[.,!?…。，、।۔،])]+",
        r"(?=(\d{3})+(?!\d))",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
        r" {2,}",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[\p{L}\p{M}]+",
        r"\p{N}+(?:[.,]\p{N}+)*",  # of word vectors
        *(r"(a+b)*", r"(a{2}b+)+", r"(ab+|c)*(d+)", r"+(a)", r"((a+)b)+", r"(\s*[\r\n])+"),
        *(r"\(a+\)+", r"[(a+)]+", r"(a+)?b+(c+)", r"(?:\r?\n)+(?!\r?\n)", r"(?#(a+)+)b", "", "(", "a)"),
    ],
)
def test_patterns_of_tokenizers(pattern: str) -> None:
    assert not repeats_repetition(pattern)


@pytest.mark.parametrize("place", ["normalizer", "pre_tokenizer", "decoder"])
def test_every_step_of_a_tokenizer(place: str) -> None:
    tokenizer, pattern = Tokenizer(models.WordLevel({"a": 0}, "a")), Regex("(a+)+$")
    step = {
        "normalizer": normalizers.Sequence([normalizers.NFC(), normalizers.Replace(pattern, "b")]),
        "pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated")]),
        "decoder": decoders.Replace(pattern, "b"),
    }[place]
    check_ends(tokenizer, "tokenizer.json")
    setattr(tokenizer, place, step)
    with pytest.raises(BundleError, match=r"^tokenizer\.json: .* expression '\(a\+\)\+\$' repeats a repetition"):
        check_ends(tokenizer, "tokenizer.json")


def test_a_bundle_is_refused_when_it_is_opened(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    content = json.loads((bundle / "tokenizer.json").read_bytes())
    content["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+$"},
        "behavior": "Isolated",
        "invert": False,
    }
    rewrite_file(bundle, "tokenizer.json", json.dumps(content).encode())
    with pytest.raises(BundleError, match=r"tokenizer\.json: .* repeats a repetition, as \(a\+\)\+ does"):
        Encoder(bundle)
