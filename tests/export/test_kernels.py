"""Test that an export makes the same choices, and the same bundle, whichever kernels numpy's OpenBLAS takes."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.checkpoints import save_checkpoint
from support.cli import python
from support.corpus import sentences
from support.once import shared_folder
from whiten import Encoder

pytestmark = pytest.mark.slow

EXPORTS = """
import sys
from pathlib import Path
from support.traces import remembering
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe
from whiten_export.sources import pytorch
model, corpus, out, traces = sys.argv[1:]
pytorch.trace = remembering(pytorch.trace, Path(traces))  # PyTorch has kernels of its own
export_bundle(Recipe(model, layers=(1, 2), whitening=None), f"{out}/plain")
export_bundle(Recipe(model, layers=(0, 1), whitening="pca", corpus=(corpus,)), f"{out}/white")
"""
PROCESSORS = {"default": (None, 2), "AVX2": ("Haswell", 1), "SSE3": ("Prescott", 2)}
"""Core types of OpenBLAS, and numbers of threads."""


@pytest.fixture(scope="module")
def exported(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the bundles of each processor."""
    checkpoint = save_checkpoint("bert", tmp_path_factory.mktemp("checkpoint"), num_hidden_layers=2)
    traces = shared_folder(tmp_path_factory) / "traces"
    folders = {}
    for name, (core, threads) in PROCESSORS.items():
        folders[name] = tmp_path_factory.mktemp("exported")
        environment = os.environ | {"OPENBLAS_NUM_THREADS": str(threads), "WHITEN_THREADS": str(threads)}
        environment |= {} if core is None else {"OPENBLAS_CORETYPE": core}
        environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        done = python(EXPORTS, checkpoint, corpus_file, folders[name], traces, env=environment)
        assert done.returncode == 0, done.stderr
    return folders


def of_files(bundle: Path) -> dict[str, Any]:
    files: dict[str, Any] = json.loads((bundle / "whiten.json").read_text("utf-8"))["files"]
    return files


def test_a_bundle_without_a_fit_has_the_same_files(exported: dict[str, Path]) -> None:
    """Those of int8 are in tests/guarantees/test_vectors.py."""
    first, *others = (of_files(folder / "plain") for folder in exported.values())
    for other in others:
        assert {name for name in first if first[name] != other[name]} == set()


def test_vectors_with_a_fit_differ_by_rounding(exported: dict[str, Path]) -> None:
    found = []
    for folder in exported.values():
        with Encoder(folder / "white") as encoder:
            found.append((encoder.space, encoder.encode(sentences(60), normalize_embeddings=True)))
    for space, vectors in found[1:]:
        assert space == found[0][0]
        np.testing.assert_allclose(vectors, found[0][1], rtol=0, atol=1e-6)
