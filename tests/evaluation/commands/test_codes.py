"""Test `whiten eval codes` against a direct computation."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from support.bundles import copy_bundle
from support.cli import ok, refused
from support.sts import Rows, write_paper_layout
from whiten import Encoder
from whiten_evaluation.tasks.sts import CodeScore, with_front
from whiten_whitening.codes.coder import Coder

run = partial(ok, "eval", "codes")
TASKS = ("STS-B", "STS12")

Content = dict[tuple[str, str], Rows]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Content]:
    folder = tmp_path_factory.mktemp("sts")
    return folder, write_paper_layout(folder, TASKS)


def direct(content: Content, tiny: Encoder, code: object) -> float:
    """The mean of the tasks by scipy's correlation, of vectors that a function makes of the bundle's."""
    found: dict[str, list[float]] = {}
    for (task, _), rows in content.items():
        first, second = (
            np.asarray(code(tiny.encode([row[column] for row in rows])), np.float64)  # type: ignore[operator]
            for column in (0, 1)
        )
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        cosines = (first * second).sum(axis=1) / lengths
        found.setdefault(task, []).append(100 * float(spearmanr(cosines, [row[2] for row in rows]).statistic))
    return float(np.mean([np.mean(scores) for scores in found.values()]))


def test_scores_equal_a_direct_computation(tiny_bundle: Path, tiny: Encoder, data: tuple[Path, Content]) -> None:
    folder, content = data
    result = run(tiny_bundle, "--data", folder, "--bytes", 16, "--bytes", 4, "--json")
    [bundle] = json.loads(result.stdout)["bundles"]
    scores = {(one["name"], one["bytes"]): one for one in bundle["codes"]}
    assert {key: one["dims"] for key, one in scores.items()} == {
        **{("float32", 128): 32, ("int8", 36): 32, ("binary", 4): 32},
        **{("codes", 16): 32, ("codes", 4): 16},
    }
    coder = Coder.of(tiny_bundle, 4)
    wanted = {
        ("float32", 128): direct(content, tiny, lambda vectors: vectors),
        ("binary", 4): direct(content, tiny, lambda vectors: np.where(vectors > 0, 1, -1)),
        ("codes", 4): direct(content, tiny, lambda vectors: coder.decode(coder.encode(vectors))),
    }
    for key, score in wanted.items():
        assert scores[key]["spearman"] == pytest.approx(score, abs=0.05)
        assert np.mean(list(scores[key]["tasks"].values())) == pytest.approx(scores[key]["spearman"])
    assert scores["int8", 36]["spearman"] == pytest.approx(wanted["float32", 128], abs=0.5)


def score(name: str, size: int, spearman: float) -> CodeScore:
    return CodeScore(name=name, dims=1, bytes=size, spearman=spearman, tasks={})


def test_front_is_what_none_beats() -> None:
    scores = [score("a", 8, 70), score("b", 4, 70), score("c", 4, 69), score("d", 2, 60), score("e", 16, 71)]
    assert [one.name for one in with_front(scores) if one.front] == ["b", "d", "e"]
    assert all(one.front for one in with_front([score("a", 4, 70), score("b", 4, 70)]))


def test_table_marks_the_front(tiny_bundle: Path, data: tuple[Path, Content]) -> None:
    result = run(tiny_bundle, "--data", data[0])
    header, first, *rest = result.stdout.splitlines()
    assert header.split() == ["bundle", "code", "dims", "bytes", "mean", "float32", "front"]
    assert "float32" in first
    assert len(rest) == 2 + 1  # 16 bytes; 32 dimensions take no more
    assert any(line.rstrip().endswith("*") for line in rest)


def test_bundle_without_moments_gets_the_kinds_that_need_none(
    tiny_bundle: Path, data: tuple[Path, Content], tmp_path: Path
) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path, whitening=None)
    result = run(bundle, "--data", data[0], "--json")
    assert "has no whitening and stores no moments" in result.stderr
    assert [one["name"] for one in json.loads(result.stdout)["bundles"][0]["codes"]] == ["float32", "int8", "binary"]


def test_errors_are_one_line(tiny_bundle: Path, data: tuple[Path, Content]) -> None:
    for options, message in (
        (["--bytes", "17"], "bytes is 17; wanted a whole number from 1 to 16: 4 bits for each of the 32 axes"),
        (["--json", "--csv"], "choose one"),
    ):
        assert message in refused("eval", "codes", tiny_bundle, "--data", data[0], *options)
