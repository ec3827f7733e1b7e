"""Test the paired bootstrap: ranks against scipy, intervals against resampling by hand."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from support.cli import invoke
from support.sts import write_paper_layout
from whiten_evaluation.commands.main import evaluate
from whiten_evaluation.tasks.bootstrap import counted_correlation, counted_ranks, interval, resampled_task
from whiten_export.pipeline.fit import fit_bundle
from whiten_export.pipeline.refit import refit_bundle
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_whitening.maps import WhiteningSpec

run = partial(invoke, evaluate)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=30))
def test_counted_ranks_equal_scipy_on_repeated_values(pairs: list[tuple[int, int]]) -> None:
    values, counts = (np.array(column, float) for column in zip(*pairs, strict=True))
    repeated = np.repeat(values, counts.astype(int))
    found = np.repeat(counted_ranks(values, counts[None])[0], counts.astype(int))
    np.testing.assert_allclose(found, rankdata(repeated))


@pytest.mark.parametrize("seed", range(5))
def test_counted_correlation_equals_scipy(seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.integers(0, 6, (2, 80)).astype(float)
    counts = random.multinomial(80, np.full(80, 1 / 80), size=3).astype(float)
    found = counted_correlation(counted_ranks(a, counts), counted_ranks(b, counts), counts)
    for row, drawn in zip(found, counts.astype(int), strict=True):
        assert row == pytest.approx(spearmanr(np.repeat(a, drawn), np.repeat(b, drawn)).statistic)


def test_correlation_of_constant_values_is_zero() -> None:
    counts = np.ones((1, 4))
    ranks = counted_ranks(np.zeros(4), counts)
    assert counted_correlation(ranks, counted_ranks(np.arange(4.0), counts), counts) == 0


def test_intervals_equal_resampling_by_hand() -> None:
    random = np.random.default_rng(0)
    gold = [random.normal(size=200), random.normal(size=120)]
    first = [part + random.normal(size=len(part)) for part in gold]
    second = [part + 1.5 * random.normal(size=len(part)) for part in gold]
    found = resampled_task([first, second], gold, 2000, seed=(1,))
    differences = []
    for _ in range(2000):
        total = 0.0
        for a, b, scores in zip(first, second, gold, strict=True):
            rows = random.integers(0, len(scores), len(scores))
            total += spearmanr(b[rows], scores[rows]).statistic - spearmanr(a[rows], scores[rows]).statistic
        differences.append(total / 2)
    mine, theirs = interval(found[1] - found[0]), np.quantile(differences, [0.025, 0.975])
    assert (mine.low, mine.high) == pytest.approx(theirs, abs=0.015)
    assert mine.excludes_zero


def test_command_finds_no_difference_between_equal_bundles(tiny_bundle: Path, tmp_path: Path) -> None:
    write_paper_layout(tmp_path, ("STS-B", "STS15"))
    result = run("compare", tiny_bundle, tiny_bundle, "--data", tmp_path, "--json", "--resamples", 100)
    assert result.exit_code == 0
    first, second = json.loads(result.stdout)["bundles"]
    assert first["difference"] is None
    assert second["difference"] == {"value": 0, "low": 0, "high": 0, "certain": False}
    assert second["average"] == first["average"] == pytest.approx(np.mean([t["mean"] for t in first["tasks"]]))
    assert first["dimension"] == 32
    shown = run("compare", tiny_bundle, tiny_bundle, "--data", tmp_path, "--resamples", 100)
    assert "95% from" in shown.stdout
    assert shown.stdout.count(first["space"]) == 2
    assert "spaces" not in shown.stderr


def test_worse_bundle_has_a_significant_difference(tiny_bundle: Path, tmp_path: Path) -> None:
    """The worse bundle is the same one, whitened to two dimensions."""
    statistics = fit_bundle(tiny_bundle, Corpus((BUILTIN_CORPUS,), None, 400))
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
    result = run("compare", tiny_bundle, "--data", tmp_path)
    assert result.exit_code == 2
    assert "name two or more to compare" in result.stderr
