"""Test `whiten eval sts`: one bundle, several bundles, codes, and what it refuses."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from support.bundles import contents, copy_bundle
from support.cli import invoke, ok, refused
from support.hub import Hub
from support.sts import Rows, write_paper_layout
from whiten import Coder, Encoder, fit_bundle, refit_bundle
from whiten_evaluation.commands import evaluate
from whiten_evaluation.sts import SUBSETS
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_whitening.maps import WhiteningSpec

run = partial(ok, "eval", "sts")

Content = dict[tuple[str, str], Rows]


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whiten_evaluation.sts.RESAMPLES", 100)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Content]:
    folder = tmp_path_factory.mktemp("sts")
    return folder, write_paper_layout(folder, ("STS-B", "STS12"))


def scores(*arguments: object) -> list[dict[str, Any]]:
    """Return the rows that the command prints as JSON."""
    rows = json.loads(run(*arguments, "--json").stdout)["bundles"]
    assert isinstance(rows, list)
    return rows


def table(*arguments: object) -> list[list[str]]:
    """Return the cells of the table that the command prints."""
    return [re.split(r"  +", line) for line in run(*arguments).stdout.splitlines()]


def test_one_bundle_has_a_row_for_each_task_and_no_differences(tiny_bundle: Path, tmp_path: Path) -> None:
    write_paper_layout(tmp_path, tuple(SUBSETS), count=20)
    header, *rows = table(tiny_bundle, "--data", tmp_path)
    assert header == ["bundle", "task", "pairs", "mean", "wmean", "all"]
    assert [row[1] for row in rows] == [*SUBSETS, "average of the seven"]
    document = json.loads(run(tiny_bundle, "--data", tmp_path, "--json").stdout)
    (score,) = document["bundles"]
    assert document["absent"] == {}
    assert document["models"] == [{"bundle": str(tiny_bundle), "max_seq_length": 48, "similarity": "cosine"}]
    assert [task["name"] for task in score["tasks"]] == list(SUBSETS)
    assert (score["bundle"], score["stored"], score["bytes"]) == (str(tiny_bundle), "float32", 128)
    assert (score["differences"], score["difference"]) == ([], None)
    assert rows[-1][3:] == [f"{score['averages'][kind]:.2f}" for kind in ("mean", "wmean", "all")]


def test_absent_tasks_are_named(tiny_bundle: Path, data: tuple[Path, Content]) -> None:
    result = run(tiny_bundle, "--data", data[0])
    assert "STS13 is absent: no file of it (FNWN, " in result.stderr
    assert "average of these 2" in result.stdout


def test_equal_bundles_do_not_differ(tiny_bundle: Path, data: tuple[Path, Content]) -> None:
    first, second = scores(tiny_bundle, tiny_bundle, "--data", data[0])
    assert first["difference"] is None
    assert second["difference"] == {"value": 0, "low": 0, "high": 0, "certain": False}
    assert second["averages"] == first["averages"]
    assert first["averages"]["mean"] == pytest.approx(np.mean([task["mean"] for task in first["tasks"]]))
    assert first["dimension"] == 32
    header, *rows = table(tiny_bundle, tiny_bundle, "--data", data[0])
    assert header[-3:] == ["difference", "95% from", "to"]
    assert [row[1] for row in rows] == ["STS-B"] * 2 + ["STS12"] * 2 + ["average of these 2"] * 2
    assert [row[-3:] for row in rows[:2]] == [["-"] * 3, ["0.00"] * 3]


def test_worse_bundle_has_a_significant_difference(tiny_bundle: Path, tmp_path: Path) -> None:
    """The worse bundle is the same one, whitened to two dimensions."""
    statistics = tmp_path / "statistics.safetensors"
    fit_bundle(tiny_bundle, Corpus((BUILTIN_CORPUS,), None, 400), statistics)
    cut = refit_bundle(tiny_bundle, statistics, WhiteningSpec(dimension=2), tmp_path / "cut").path
    write_paper_layout(tmp_path / "data", ("STS-B", "STS15"), count=200)
    first, row = scores(tiny_bundle, cut, "--data", tmp_path / "data")
    assert first["space"] != row["space"] == read_manifest(cut).space
    assert row["difference"]["high"] < 0
    assert row["difference"]["certain"]
    assert all(difference["value"] < 0 for difference in row["differences"])
    assert row["dimension"] == 2
    assert table(tiny_bundle, cut, "--data", tmp_path / "data")[-1][-1] == "*"


def direct(content: Content, tiny: Encoder, coder: Coder | None) -> float:
    """Return the mean of the tasks by scipy's correlation, of the bundle's vectors or of what codes stand for."""
    found: dict[str, list[float]] = {}
    for (task, _), rows in content.items():
        columns = (tiny.encode([row[column] for row in rows]) for column in (0, 1))
        first, second = (column if coder is None else coder.decode(coder.encode(column)) for column in columns)
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        cosines = (first * second).sum(axis=1) / lengths
        found.setdefault(task, []).append(100 * float(spearmanr(cosines, [row[2] for row in rows]).statistic))
    return float(np.mean([np.mean(values) for values in found.values()]))


def test_codes_equal_a_direct_computation(tiny_bundle: Path, tiny: Encoder, data: tuple[Path, Content]) -> None:
    folder, content = data
    rows = scores(tiny_bundle, "--data", folder, "--bytes", 16, "--bytes", 4)
    assert [(row["stored"], row["bytes"]) for row in rows] == [("float32", 128), ("codes", 16), ("codes", 4)]
    for row, coder in zip(rows, (None, Coder.of(tiny_bundle, 16), Coder.of(tiny_bundle, 4)), strict=True):
        assert row["averages"]["mean"] == pytest.approx(direct(content, tiny, coder), abs=0.05)
    behind = rows[2]["averages"]["mean"] - rows[0]["averages"]["mean"]
    assert rows[2]["difference"]["value"] == pytest.approx(behind)
    assert table(tiny_bundle, "--data", folder, "--bytes", 4)[0][:4] == ["bundle", "stored", "bytes", "task"]


def test_bundles_of_the_hub_are_evaluated_by_name(hub: Hub, tiny_bundle: Path, data: tuple[Path, Content]) -> None:
    hub.repositories["org/tiny"] = contents(tiny_bundle)
    first, second = scores("hf://org/tiny", tiny_bundle, "--data", data[0], "--tasks", "STS-B")
    assert (first["bundle"], second["bundle"]) == ("hf://org/tiny", str(tiny_bundle))
    assert first["tasks"] == second["tasks"]
    assert Coder.of("hf://org/tiny").id == Coder.of(tiny_bundle).id


def test_errors_are_one_line(tiny_bundle: Path, golden: Path, data: tuple[Path, Content], tmp_path: Path) -> None:
    line = ("eval", "sts", tiny_bundle, "--data", data[0])
    assert "task 'sts99' is unknown" in refused(*line, "--tasks", "sts99")
    wanted = "bytes is 17; wanted a whole number from 1 to 16: 4 bits for each of the 32 axes"
    assert wanted in refused(*line, "--bytes", 17)
    bare = copy_bundle(tiny_bundle, tmp_path, whitening=None)
    assert "stores no moments" in refused("eval", "sts", bare, "--data", data[0], "--bytes", 8, code=1)
    assert "'query'" in refused(*line, "--prompt-name", "query")
    result = invoke(evaluate, "sts", tiny_bundle, golden / "bundle-v1-vectors", "--data", data[0])
    assert result.exit_code == 1
    assert "takes vectors, not texts" in result.stderr
    assert "·" not in result.stderr  # no stage began
