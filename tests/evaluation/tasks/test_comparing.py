"""Test the paired bootstrap against resampling by hand, and the command."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from support.cli import ok, refused
from support.sts import write_paper_layout
from whiten import fit_bundle, refit_bundle
from whiten_evaluation.tasks.sts import interval, resampled
from whiten_evaluation.tasks.sts_files import Subset, Task
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_whitening.maps import WhiteningSpec

run = partial(ok, "eval")


def test_intervals_equal_resampling_by_hand() -> None:
    random = np.random.default_rng(0)
    gold = [random.normal(size=200), random.normal(size=120)]
    first = [part + random.normal(size=len(part)) for part in gold]
    second = [part + 1.5 * random.normal(size=len(part)) for part in gold]
    subsets = tuple(Subset("made", (), (), part, Path()) for part in gold)
    found = resampled([Task("made", subsets)], [[first], [second]], 2000, seed=1)[:, 0]
    assert resampled([Task("made", subsets)], [[[np.zeros(200), np.ones(120)]]], 1, seed=1) == 0  # constant values
    differences = []
    for _ in range(2000):
        total = 0.0
        for a, b, scores in zip(first, second, gold, strict=True):
            rows = random.integers(0, len(scores), len(scores))
            total += 100 * (spearmanr(b[rows], scores[rows])[0] - spearmanr(a[rows], scores[rows])[0])
        differences.append(total / 2)
    mine, theirs = interval(found[1] - found[0]), np.quantile(differences, [0.025, 0.975])
    assert (mine.low, mine.high) == pytest.approx(theirs, abs=1.5)
    assert mine.high < 0


def test_command_finds_no_difference_between_equal_bundles(tiny_bundle: Path, tmp_path: Path) -> None:
    write_paper_layout(tmp_path, ("STS-B", "STS15"))
    result = run("compare", tiny_bundle, tiny_bundle, "--data", tmp_path, "--json")
    first, second = json.loads(result.stdout)["bundles"]
    assert first["difference"] is None
    assert second["difference"] == {"value": 0, "low": 0, "high": 0, "certain": False}
    assert second["average"] == first["average"] == pytest.approx(np.mean([t["mean"] for t in first["tasks"]]))
    assert first["dimension"] == 32
    shown = run("compare", tiny_bundle, tiny_bundle, "--data", tmp_path)
    assert "95% from" in shown.stdout
    assert shown.stdout.count(first["space"]) == 2
    assert "spaces" not in shown.stderr


def test_worse_bundle_has_a_significant_difference(tiny_bundle: Path, tmp_path: Path) -> None:
    """The worse bundle is the same one, whitened to two dimensions."""
    statistics = tmp_path / "statistics.safetensors"
    fit_bundle(tiny_bundle, Corpus((BUILTIN_CORPUS,), None, 400), statistics)
    cut = refit_bundle(tiny_bundle, statistics, WhiteningSpec(dimension=2), tmp_path / "cut").path
    write_paper_layout(tmp_path / "data", ("STS-B", "STS15"), count=200)
    result = run("compare", tiny_bundle, cut, "--data", tmp_path / "data", "--json")
    first, row = json.loads(result.stdout)["bundles"]
    assert first["space"] != row["space"] == read_manifest(cut).space
    (note,) = (line for line in result.stderr.splitlines() if "different spaces" in line)
    assert "scores can be compared" in note
    assert row["difference"]["high"] < 0
    assert row["difference"]["certain"]
    assert row["dimension"] == 2


def test_single_bundle_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    assert "name two or more to compare" in refused("eval", "compare", tiny_bundle, "--data", tmp_path)
