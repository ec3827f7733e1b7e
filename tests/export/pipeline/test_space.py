"""Test which exports and refits share a space; what decides its id is in tests/runtime/bundle/test_space.py."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.cli import ok
from support.corpus import sentences
from support.vectors import anisotropic
from whiten import Encoder, VectorWhitener
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.space import space_id

pytestmark = pytest.mark.slow


def space(bundle: Path) -> str:
    """Return the id in a bundle's manifest, which must be what the manifest gives."""
    manifest = read_manifest(bundle)
    assert manifest.space is not None
    assert manifest.space == space_id(manifest)
    return manifest.space


def test_all_precisions_of_an_export_share_a_space(make: Callable[..., Path]) -> None:
    bundles = [make(*options) for options in ((), ("--precision", "fp16"), ("--precision", "int8"))]
    assert len({space(bundle) for bundle in bundles}) == 1
    found = []
    for bundle in bundles:
        with Encoder(bundle) as encoder:
            assert encoder.space == space(bundle)
            found.append(encoder.encode(sentences(60), normalize_embeddings=True))
    for vectors in found[1:]:
        assert np.median((found[0] * vectors).sum(axis=1)) > 0.98


def test_refit_moves_to_the_space_of_its_corpus_and_back(
    make: Callable[..., Path], corpus_file: Path, other_file: Path, tmp_path: Path
) -> None:
    ok("refit", make(), "--corpus", other_file, "--out", tmp_path / "moved")
    assert space(tmp_path / "moved") != space(make())
    ok("refit", tmp_path / "moved", "--corpus", corpus_file, "--whitening", "pca", "--out", tmp_path / "back")
    assert space(tmp_path / "back") == space(make())


def test_statistics_of_one_precision_give_all_precisions_one_space(
    make: Callable[..., Path], corpus_file: Path, other_file: Path, tmp_path: Path
) -> None:
    for precision in ("fp32", "int8"):
        stats, more = (tmp_path / f"{precision}{name}.safetensors" for name in ("", "-more"))
        ok("fit", make("--precision", precision), "--corpus", other_file, "-o", stats)
        ok("fit", make("--precision", precision), "--corpus", corpus_file, "-o", more)
        for name in ("fp32", "int8"):
            bundle = make("--precision", name)
            ok("refit", bundle, "--stats", stats, "--out", tmp_path / f"{precision}-{name}")
            ok("refit", bundle, "--stats", stats, "--stats", more, "--out", tmp_path / f"{precision}-{name}-both")
    spaces = {name: space(tmp_path / name) for name in ("fp32-fp32", "fp32-int8", "int8-fp32", "int8-int8")}
    assert spaces["fp32-fp32"] == spaces["fp32-int8"] != spaces["int8-fp32"] == spaces["int8-int8"]
    assert space(tmp_path / "fp32-int8-both") != space(tmp_path / "int8-int8-both")
    assert "int8" not in str(read_manifest(tmp_path / "fp32-int8").whitening)


def test_bundles_of_vectors_have_a_space(tmp_path: Path) -> None:
    rows = anisotropic(300, 6).astype(np.float32)
    spaces = []
    for number, options in enumerate(((), (), ("--whitening", "zca"))):
        np.save(tmp_path / f"v{number}.npy", rows)
        out = tmp_path / f"b{number}"
        ok("export", "x", "--from-vectors", tmp_path / f"v{number}.npy", "--out", out, *options)
        with VectorWhitener(out) as whitener:
            assert whitener.space == space(out)
            spaces.append(whitener.space)
    assert spaces[0] == spaces[1] != spaces[2]
