"""Test what `whiten info` says about a bundle, and whitenings in words."""

from pathlib import Path
from typing import Any

import pytest

from support.bundles import copy_bundle, edit_manifest
from whiten_runtime.bundle.manifest import WhiteningRecord, read_manifest
from whiten_runtime.commands.info import describe

PARITY = {
    "reference": "sentence-transformers 6.2.0, float32",
    "vectors": 80,
    "min_cosine": 1.0,
    "mean_cosine": 1.0,
    "max_difference": 3e-7,
    "max_norm_error": 2e-7,
    "mean_norm_error": 1e-7,
}


def rows(bundle: Path, tmp_path: Path, **changes: Any) -> list[tuple[str, str]]:
    """Return the rows of the table of a bundle with some fields of its manifest changed."""
    copy = copy_bundle(bundle, tmp_path)
    edit_manifest(copy, lambda manifest: manifest.update(changes))
    lines = describe(read_manifest(copy)).splitlines()
    start = len(lines[0]) - len(lines[0].removeprefix("bundle").lstrip())
    return [(line[:start].rstrip(), line[start:]) for line in lines]


SCALES = {"constant_scales": 18, "token_scales": 6, "far_min_cosine": 0.99476, "far_mean_cosine": 0.998}
SCALES |= {"largest_pair": 128, "token_min_cosine": 0.9948}


@pytest.mark.parametrize(
    ("name", "changes", "row", "absent"),
    [
        ("bundle-v1", {}, ("layers", "1, 4, mean pooling"), ["route", "modules", "prompt", "similarity", ""]),
        ("bundle-v1", {}, ("max length", "48 tokens"), ["may be cut to"]),
        ("bundle-v1", {"prompts": {"query": "x\n\u2028\x1b[31m"}}, ("prompt", r"query: 'x\n\u2028\x1b[31m'"), []),
        (
            "bundle-v1-int8",
            {"dimension": 8},
            ("vectors", "8 dimensions, L2-normalised"),
            [],
        ),
        (
            "bundle-v1",
            {"precision": "int8", "quantization": SCALES},
            ("", "18 constant scales, 6 per token; cosine to float32 on unusual texts 0.9948 at worst"),
            [],
        ),
        ("bundle-v1-vectors", {}, ("takes", "vectors of 12 dimensions"), ["layers", "prompt", "max length"]),
    ],
)
def test_rows(
    golden: Path, tmp_path: Path, name: str, changes: dict[str, Any], row: tuple[str, str], absent: list[str]
) -> None:
    found = rows(golden / name, tmp_path, **changes)
    assert row in found
    assert not {first for first, _ in found} & {*absent}


def test_a_published_model_is_described_in_full(golden: Path, tmp_path: Path) -> None:
    found = rows(
        golden / "bundle-v1",
        tmp_path,
        layers=[2, 3, 4],
        layer_weights=[0.5, 1.0, 1 / 3],
        pooling="cls+mean",
        include_prompt=False,
        modules=["Dense(64 -> 48, Tanh)", "LayerNorm"],
        prompts={"query": "query:\n ", "sts": ""},
        default_prompt_name="query",
        route="document",
        whitening=None,
        matryoshka_dimensions=[24, 16],
        similarity_fn_name="dot",
        truncation_side="left",
        normalize=True,
        published=PARITY,
    )
    for row in [
        ("layers", "2, 3, 4 (weights 0.5, 1, 0.333), cls+mean pooling, without the prompt's tokens"),
        ("route", "document"),
        ("modules", "Dense(64 -> 48, Tanh), LayerNorm"),
        ("prompt", "query, the default: 'query:\\n '"),
        ("prompt", "sts: ''"),
        ("whitening", "not whitened"),
        ("vectors", "32 dimensions, L2-normalised"),
        ("max length", "48 tokens, truncated from the left"),
        ("similarity", "dot"),
        ("may be cut to", "24, 16 dimensions"),
    ]:
        assert row in found
    published = next(text for name, text in found if not name and "sentence-transformers" in text)
    assert published.startswith("cosine 1 - 0.0e+00 on average")
    assert "worst norm 2.0e-07 off" in published
    assert published.endswith("of that against sentence-transformers 6.2.0, float32")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shrinkage": 0.5, "shrinkage_estimator": "fixed"}, "soft whitening, shrinkage 0.5"),
        ({"shrinkage": 0.1234, "shrinkage_estimator": "oas"}, "soft whitening, shrinkage 0.123 by oas"),
        ({}, "full whitening (pca)"),
        ({"method": "zca", "shrinkage": 0.5}, "soft whitening (zca), shrinkage 0.5"),
        ({"beta": 0.5}, "partial whitening (pca), beta 0.5"),
        ({"beta": 0.0, "shrinkage": 0.5}, "centred only"),
        ({"beta": 0.0, "common_components": 2}, "centred only, 2 common components removed"),
        ({"method": "none", "beta": 0.0, "common_components": 1}, "not whitened, 1 common component removed"),
    ],
)
def test_whitening_in_words(changes: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"method": "pca", "beta": 1.0, "shrinkage": 0.0, "eigenvalue_floor": 1e-12}
    record = WhiteningRecord(**{**usual, **changes}, rank=3, n_samples=10, corpus=())
    assert record.description == words
