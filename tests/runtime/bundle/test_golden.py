"""Test that bundles of format 1, written by 0.3.0, stay readable and give the stored vectors.

PyTorch, sentence-transformers and numpy computed the stored vectors, but those of the int8 graph.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles import contained, stored_fields
from whiten import Encoder, VectorWhitener
from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.parity import GATES

BUNDLES = ("bundle-v1", "bundle-v1-int8", "bundle-v1-published", "bundle-v1-vectors")


@pytest.fixture(scope="module")
def expected(golden: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((golden / "vectors.json").read_text("utf-8"))
    return content


def close(got: np.ndarray, want: list[list[float]], tolerance: float = 1e-4) -> None:
    """Compare relative to the norm of the vectors: machines round differently."""
    reference = np.asarray(want)
    assert got.shape == reference.shape
    assert (np.abs(got - reference).max(axis=1) <= tolerance * np.linalg.norm(reference, axis=1)).all()


@pytest.mark.parametrize("name", BUNDLES)
def test_golden_bundles_pass_all_checks(golden: Path, name: str) -> None:
    manifest = open_bundle(golden / name).manifest
    assert manifest.format_version == 1
    assert manifest.parity is not None
    assert contained(stored_fields(golden / name), json.loads(manifest.to_json()))


def test_float32_bundle_gives_the_stored_vectors(golden: Path, expected: dict[str, Any]) -> None:
    with Encoder(golden / "bundle-v1") as encoder:
        close(encoder.encode(expected["texts"]), expected["bundle-v1"])
        cut = encoder.encode(expected["texts"], truncate_dim=8, normalize_embeddings=True)
        close(cut, expected["bundle-v1, 8 dimensions, normalised"])
        assert encoder.truncated == 2
        assert GATES["fp32"].passes(encoder.verify())


def test_int8_bundle_with_both_outputs_gives_the_stored_vectors(golden: Path, expected: dict[str, Any]) -> None:
    with Encoder(golden / "bundle-v1-int8") as encoder:
        white, raw = encoder.encode_both(expected["texts"])
        # Rounding of another machine may move a value to the next of 255 levels.
        close(white, expected["bundle-v1-int8"], 0.05)
        close(raw, expected["bundle-v1-int8, before whitening"], 0.05)
        assert GATES["int8"].passes(encoder.verify())


def test_published_model_gives_what_sentence_transformers_gave(golden: Path, expected: dict[str, Any]) -> None:
    with Encoder(golden / "bundle-v1-published") as encoder:
        close(encoder.encode(expected["texts"]), expected["bundle-v1-published"])
        close(encoder.encode_query(expected["texts"]), expected["bundle-v1-published, query"])
        assert GATES["fp32"].passes(encoder.verify())


def test_bundle_of_vectors_gives_the_stored_vectors(golden: Path, expected: dict[str, Any]) -> None:
    with VectorWhitener(golden / "bundle-v1-vectors") as whitener:
        close(whitener.transform(expected["rows"]), expected["bundle-v1-vectors"])
        assert GATES["fp32"].passes(whitener.verify())
