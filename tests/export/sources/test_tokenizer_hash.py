"""Test that a tokenizer is named by what it does, however its file is written."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from whiten_export.sources.tokenizer import tokenizer_sha256

BYTE_PAIRS = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "abb": 3}, [("a", "b"), ("ab", "b")]))
BYTE_PAIRS.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTE_PAIRS.decoder = decoders.ByteLevel()
PIECES = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁a", -1.0), ("b", -2.5)], 0, False))
PIECES.pre_tokenizer = pre_tokenizers.Metaspace()


def hashed(content: Any) -> str:
    return tokenizer_sha256(json.dumps(content))


def changed(tokenizer: Tokenizer, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    change(content)
    return content


def older_merges(content: dict[str, Any]) -> None:
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]


def test_merges_as_tokenizers_wrote_them_before_0_20_are_the_same() -> None:
    old = changed(BYTE_PAIRS, older_merges)
    assert old["model"]["merges"] == ["a b", "ab b"]
    assert hashed(old) == hashed(json.loads(BYTE_PAIRS.to_str()))


@pytest.mark.parametrize(
    ("tokenizer", "change"),
    [
        (BYTE_PAIRS, lambda content: content["model"].pop("ignore_merges")),  # before 0.19
        (BYTE_PAIRS, lambda content: content["model"].pop("byte_fallback")),
        (PIECES, lambda content: (content["pre_tokenizer"].pop("split"), content["pre_tokenizer"].update(older()))),
        (BYTE_PAIRS, lambda content: content.update(padding=padding(), truncation=truncation())),
    ],
)
def test_settings_as_older_versions_wrote_them_are_the_same(
    tokenizer: Tokenizer, change: Callable[[dict[str, Any]], object]
) -> None:
    assert hashed(changed(tokenizer, change)) == hashed(json.loads(tokenizer.to_str()))


def older() -> dict[str, Any]:
    """Return what Metaspace had before 0.19."""
    return {"add_prefix_space": True, "prepend_scheme": "always"}


def padding() -> dict[str, Any]:
    kept = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    return {"strategy": {"Fixed": 128}, **kept}


def truncation() -> dict[str, Any]:
    return {"direction": "Right", "max_length": 128, "strategy": "LongestFirst", "stride": 0}


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: reversed_keys(value[name]) for name in reversed(value)}
    return [reversed_keys(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("tokenizer", [BYTE_PAIRS, PIECES])
def test_the_order_of_keys_and_the_layout_are_the_same(tokenizer: Tokenizer) -> None:
    content = json.loads(tokenizer.to_str())
    assert list(reversed_keys(content)) != list(content)
    assert hashed(reversed_keys(content)) == hashed(content) == tokenizer_sha256(tokenizer.to_str(pretty=True))


@pytest.mark.parametrize(
    ("tokenizer", "change"),
    [
        (BYTE_PAIRS, lambda content: content["model"]["merges"].reverse()),
        (BYTE_PAIRS, lambda content: content["model"].update(ignore_merges=True)),
        (BYTE_PAIRS, lambda content: content["pre_tokenizer"].update(use_regex=False)),
        (BYTE_PAIRS, lambda content: content.update(normalizer=json.loads(LOWER))),
        (PIECES, lambda content: content["model"]["vocab"][1].__setitem__(1, -1.5)),
        (PIECES, lambda content: content["pre_tokenizer"].update(split=False)),
    ],
)
def test_another_tokenizer_has_another_hash(tokenizer: Tokenizer, change: Callable[[dict[str, Any]], object]) -> None:
    assert hashed(changed(tokenizer, change)) != hashed(json.loads(tokenizer.to_str()))


LOWER = normalizers.Lowercase().__getstate__()
