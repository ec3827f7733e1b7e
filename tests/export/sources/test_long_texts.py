"""Test, with the tokenizers of the families, that a part of a long text gives the tokens of the whole text."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from support.corpus import sentences
from support.nasty_texts import NASTY
from whiten_export.sources.checkpoints.checkpoint import resolve
from whiten_export.sources.lookup import word_tokenizer
from whiten_export.sources.networks.hugging_face import load_tokenizer
from whiten_export.sources.networks.transformers_tokenizer import describe_tokenizer
from whiten_runtime.bundle.manifest import Side
from whiten_runtime.inference import tokenizer_parts
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.reporter import Reporter

CUT = ("bert", "mpnet", "roberta", "gpt2", "modernbert", "albert", "t5", "xlm-roberta", "camembert", "deberta-v2")
WHOLE = ("xlm", "llama")


@pytest.fixture(scope="module", params=(*CUT, *WHOLE))
def family(
    request: pytest.FixtureRequest, checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    found = resolve(str(checkpoint(request.param)))
    path = tmp_path_factory.mktemp(request.param) / "tokenizer.json"
    path.write_text(describe_tokenizer(found, load_tokenizer(found, False)).json, "utf-8")
    return request.param, path


@pytest.mark.parametrize(("side", "limit"), [*product(get_args(Side), (4, 20))])
def test_part_gives_the_tokens_of_the_whole_text(family: tuple[str, Path], side: Side, limit: int) -> None:
    name, path = family
    ours = Tokenizer(path, limit, side)
    words = sentences(60)
    pairs = zip(words, NASTY, words[::-1], strict=False)
    texts = [f"{first} {nasty}{second}{nasty} {first}" for first, nasty, second in pairs]
    texts += [gap.join(NASTY[start::7]) for start, gap in product(range(7), ("", " ", "x ", " 1", "a b"))]
    texts += [" ".join(words), "".join(words).replace(" ", ""), "\n".join(words), "a" * 5000, " " * 5000]
    whole, enough = ours.tokenize(texts), ours.tokenize_enough(texts)
    assert list(map(ours.cut, enough)) == list(map(ours.cut, whole))
    assert [len(row) > limit for row in enough] == [len(row) > limit for row in whole]
    assert (sum(map(len, enough)) < sum(map(len, whole)) / 2) == (name in CUT)


def test_pattern_of_word_vectors_is_known() -> None:
    content = json.loads(word_tokenizer.word_tokenizer(["a", "b"], Reporter()).json)
    assert content["pre_tokenizer"]["pattern"]["Regex"] in tokenizer_parts.PATTERNS
