"""Test that a vector that is not finite is an error that names the text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.bundles import copy_bundle, edit_initializer
from whiten import BundleError, Encoder, VectorWhitener
from whiten_runtime.inference.vectors import check_computed

TEXTS = ["a dog", "the cat", "the fox runs", "a bird"]
TOKENS = {
    "bundle-v1": "network.embeddings.word_embeddings.weight",
    "bundle-v1-int8": "quantized.network.embeddings.word_embeddings.weight.scale",
}


@pytest.fixture(params=[*TOKENS.items()], ids=TOKENS)
def poisoned(request: pytest.FixtureRequest, golden: Path, tmp_path: Path) -> Path:
    """A bundle whose vector of a text with one of its tokens, that of texts[2] alone, is not finite."""
    name, table = request.param
    bundle = copy_bundle(golden / name, tmp_path)
    with Encoder(bundle) as encoder:
        rows = encoder._tokenizer.tokenize(TEXTS)
    token = next(token for token in rows[2] if not any(token in row for row in (*rows[:2], rows[3])))

    def poison(values: NDArray[np.float32]) -> NDArray[np.float32]:
        values[token] = np.nan
        return values

    edit_initializer(bundle, table, poison)
    return bundle


CALLS: dict[str, Callable[[Encoder, list[str]], Any]] = {
    "encode": lambda encoder, texts: encoder.encode(texts),
    "encode, normalised": lambda encoder, texts: encoder.encode(texts, normalize_embeddings=True),
    "encode, one by one": lambda encoder, texts: encoder.encode(texts, batch_size=1),
    "encode_query": lambda encoder, texts: encoder.encode_query(texts),
    "encode_document": lambda encoder, texts: encoder.encode_document(texts),
    "encode_iter": lambda encoder, texts: list(encoder.encode_iter(texts)),
    "binary": lambda encoder, texts: encoder.encode(texts, precision="binary"),
    "int8": lambda encoder, texts: encoder.encode(texts, precision="int8"),
    "encode_both": lambda encoder, texts: encoder.encode_both(texts) if encoder.manifest.outputs == "both" else None,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_text_of_a_vector_that_is_not_finite_is_named(
    poisoned: Path, call: Callable[[Encoder, list[str]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Encoder(poisoned) as encoder:
        if call(encoder, TEXTS[:2]) is None:
            pytest.skip("this bundle has one output")
        with pytest.raises(BundleError, match=r"texts\[2\] gets a vector .* not finite; leave it out"):
            call(encoder, TEXTS)
        with pytest.raises(BundleError, match=r"texts\[4099\] gets"):
            call(encoder, [TEXTS[0]] * 4099 + TEXTS[2:])
        with pytest.raises(BundleError, match=r"texts\[0\] gets"):
            encoder.encode(TEXTS[2])


@pytest.mark.parametrize("name", ["bundle-v1-vectors", "bundle-v1-vectors-int8"])
def test_vector_whose_result_is_not_finite_is_named(golden: Path, tmp_path: Path, name: str) -> None:
    bundle = copy_bundle(golden / name, tmp_path)
    edit_initializer(bundle, "whitening.weight", lambda weight: weight * 1e20)
    with VectorWhitener(bundle) as whitener:
        rows = np.zeros((3, whitener.width), np.float32)
        rows[1] = 1e30
        with pytest.raises(BundleError, match=r"vectors\[1\] gets"):
            whitener.transform(rows)
        assert np.isfinite(whitener.transform(rows[:1])).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_every_coordinate_is_looked_at(value: float) -> None:
    for row in range(5):
        for column in range(7):
            vectors = np.ones((5, 7), np.float32)
            vectors[row, column] = value
            with pytest.raises(BundleError, match=rf"texts\[{row}\] gets"):
                check_computed(vectors, "texts")


def test_large_numbers_are_finite() -> None:
    check_computed(np.full((3, 4), np.finfo(np.float32).max, np.float32), "texts")
    check_computed(np.empty((0, 4), np.float32), "texts")
