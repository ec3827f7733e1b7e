"""Test that vectors of the right directions and the wrong length pass no gate, in any precision."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.bundles import copy_bundle, edit_initializer
from support.cli import ok, refused
from whiten import Encoder
from whiten_export import export as pipeline

FACTORS = (0.95, 1.05)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("factor", FACTORS)
def test_export_refuses_a_wrong_scale(
    make: Callable[..., Path],
    checkpoint: Callable[[str], Path],
    corpus_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    factor: float,
) -> None:
    options = ("--precision", precision, "--max-sentences", "all")
    with Encoder(make(*options)) as encoder:
        own = 1 + (encoder.verify().norm_bias or 0)  # what the precision does to norms without a wrong scale
    assert own == pytest.approx(1, abs=0.01)
    set_head = pipeline.set_head

    def scaled(graph: Any, affine: Any, *options: Any) -> None:
        mean, weight = affine
        set_head(graph, (mean, weight * factor), *options)

    monkeypatch.setattr(pipeline, "set_head", scaled)
    choice = ("--layers", "1,4", "--whitening", "pca", "--corpus", corpus_file, *options)
    error = refused("export", checkpoint("bert"), *choice, "--out", tmp_path / "b", code=1)
    assert "no bundle was written" in error
    assert not (tmp_path / "b").exists()
    if precision != "fp32":
        (said,) = re.findall(r"norms ([\d.]+) times as long", error)
        assert float(said) == pytest.approx(factor * own, abs=0.002)


@pytest.mark.parametrize("factor", FACTORS)
def test_verify_refuses_a_wrong_scale(make: Callable[..., Path], tmp_path: Path, factor: float) -> None:
    bundle = copy_bundle(make("--precision", "int8"), tmp_path)
    ok("verify", bundle)
    edit_initializer(bundle, "whitening.weight", lambda weight: weight * factor)
    assert "norm within" in refused("verify", bundle, code=1)
