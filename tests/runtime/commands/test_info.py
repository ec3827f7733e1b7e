"""Test what `whiten info` says about a bundle, and whitenings in words."""

from pathlib import Path
from typing import Any

import pytest

from support.bundles import copy_bundle, edit_manifest
from whiten_runtime.bundle.manifest import read_manifest
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
    ("name", "changes", "values", "absent"),
    [
        ("bundle-v1", {}, ["1, 4", "mean", "48 tokens", "pca"], ["route", "modules", "prompt", "similarity", ""]),
        ("bundle-v1", {"prompts": {"query": "x\n\u2028\x1b[31m"}}, [r"query: 'x\n\u2028\x1b[31m'"], []),
        ("bundle-v1-int8", {"dimension": 8}, ["8 dimensions"], []),
        ("bundle-v1", {"precision": "int8", "quantization": SCALES}, ["18", "6", "0.9948"], []),
        ("bundle-v1", {"whitening": None}, ["not whitened"], []),
        ("bundle-v1-vectors", {}, ["vectors of 12 dimensions"], ["layers", "prompt", "max length"]),
    ],
)
def test_rows(
    golden: Path, tmp_path: Path, name: str, changes: dict[str, Any], values: list[str], absent: list[str]
) -> None:
    found = rows(golden / name, tmp_path, **changes)
    text = "\n".join(value for _, value in found)
    assert all(value in text for value in values)
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
    text = "\n".join(f"{name} {value}" for name, value in found)
    for value in ("0.5, 1, 0.333", "cls+mean", "route document", "LayerNorm", "'query:\\n '", "sts: ''", "left", "dot"):
        assert value in text
    for value in ("24, 16", "2.0e-07", "sentence-transformers 6.2.0"):
        assert value in text
