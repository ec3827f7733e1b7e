"""Test bundles in transformers.js, whose pipeline opens them without a change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.vectors import worst
from whiten import Encoder

pytestmark = pytest.mark.slow

TEXTS = ["A heron waits for a fish.", "Banks raise interest rates.", "", "naïve café", "Ünïcödé русский"]


@pytest.mark.parametrize("name", ["fp32", "cls", "lookup"])
def test_pipeline_opens_a_bundle(name: str, bundle: Callable[[str], Path], node: Callable[..., Any]) -> None:
    path = bundle(name)
    vectors = node("transformers.mjs", {"bundle": str(path), "texts": TEXTS})
    with Encoder(
        path
    ) as encoder:  # other fusions than in Python: differences are those of float32, made larger by the whitening
        assert worst(vectors, encoder.encode(TEXTS)) <= 1e-4


def test_texts_that_are_too_long_lose_their_last_special_token(
    bundle: Callable[[str], Path], node: Callable[..., Any]
) -> None:
    """Its truncation cuts the ids: docs/guides/javascript.md says so. Should it end, the text there changes."""
    path = bundle("fp32")
    vectors = node("transformers.mjs", {"bundle": str(path), "texts": ["long " * 400]})
    with Encoder(path) as encoder:
        assert worst(vectors, encoder.encode(["long " * 400])) > 1e-4
