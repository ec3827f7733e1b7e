"""Test the texts on which ranges are measured, and those on which int8 is compared."""

from pathlib import Path

import numpy as np
import pytest

from support.graphs import graph_of
from whiten_export.graph.int8.convert import Vocabulary, extreme_texts, far_texts, wide_texts
from whiten_runtime.inference.tokenizer import Tokenizer


@pytest.mark.parametrize("longest", [3, 8, 256])
def test_texts_fit_the_model(longest: int) -> None:
    vocabulary = Vocabulary(50, (48,), (49,), longest)
    texts = wide_texts(vocabulary, 0)
    assert max(map(len, texts)) == longest
    assert min(map(len, texts)) == 3
    assert all((text[0], text[-1]) == (48, 49) and max(text) < 50 and min(text) >= 0 for text in texts)
    assert any(len(set(text)) == 3 and len(text) >= longest / 5 for text in texts)


def test_texts_to_compare_on_are_not_those_of_the_calibration(fresh_bundle: Path) -> None:
    tokenizer = Tokenizer(fresh_bundle / "tokenizer.json", 32)
    vocabulary = Vocabulary.of(tokenizer, 1000, 512)
    assert vocabulary.longest == 32
    (ids,) = tokenizer.tokenize(["a"])
    assert [*vocabulary.prefix, ids[len(vocabulary.prefix)], *vocabulary.suffix] == ids
    known = {tuple(text) for text in wide_texts(vocabulary, 0)}
    assert not known & {tuple(text) for text in far_texts(tokenizer, vocabulary) if len(text) > 3}


def test_tokens_with_extreme_embeddings_are_found() -> None:
    table = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    table[123, 4], table[7, 1] = 60, -60
    model = graph_of("(int64[b, n] input_ids) => (float[b, n, 8] y) { y = Gather(table, input_ids) }", {"table": table})
    texts = extreme_texts(model, Vocabulary(1000, (), (), 10))
    found = {token for text in texts for token in text}
    assert {123, 7} <= found
    assert len(found) <= 16
    without = graph_of("(float[b, 8] vectors) => (float[b, 8] y) { y = Neg(vectors) }", {})
    assert extreme_texts(without, Vocabulary(10, (), (), 10)) == []
