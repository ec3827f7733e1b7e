"""Test `whiten fit` in shards: the same bits for any number of workers and machines, nearly those of one process."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.cli import invoke, ok, refused
from whiten_runtime.commands.console import whiten
from whiten_scale import fitting
from whiten_scale.fitting import ranges_of
from whiten_scale.places import Folder
from whiten_scale.plan import read_job
from whiten_whitening.statistics import load_statistics


@pytest.fixture(autouse=True)
def _small_shards(texts_per_shard: Callable[[int], None]) -> None:
    texts_per_shard(32)


@pytest.fixture(scope="module")
def once(tiny_bundle: Path, filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Statistics that one worker has fitted."""
    out = tmp_path_factory.mktemp("fit") / "one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whiten_scale.planner.PER_SHARD", 32)
        ok("fit", tiny_bundle, "--corpus", filled, "--out", out, "--workers", 1)
    return out


def test_files_of_others_in_the_directory_of_parts_stay(tiny_bundle: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "a.txt", tmp_path / "a.stats"
    source.write_text("".join(f"sentence number {index}\n" for index in range(40)))
    parts = tmp_path / "a.stats.parts"
    parts.mkdir()
    (parts / ".keep").write_text("mine")
    ok("fit", tiny_bundle, "--corpus", source, "--out", out, "--workers", 1)
    assert [path.name for path in parts.iterdir()] == [".keep"]


def test_bits_do_not_depend_on_workers_and_machines(
    tiny_bundle: Path, filled: Path, once: Path, tmp_path: Path
) -> None:
    arguments = ("fit", tiny_bundle, "--corpus", filled, "--out")
    found = json.loads(ok(*arguments, tmp_path / "two", "--workers", 2, "--json").stdout)
    assert found["sentences"] == 400
    assert (tmp_path / "two").read_bytes() == once.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["two"]
    part = json.loads(ok(*arguments, tmp_path / "three", "--workers", 2, "--share", "2/2", "--json").stdout)
    assert part == {"out": str(tmp_path / "three"), "ranges": found["ranges"], "missing": -(-found["ranges"] // 2)}
    assert found["missing"] == 0
    assert not (tmp_path / "three").exists()
    ok(*arguments, tmp_path / "three", "--workers", 1, "--share", "1/2")
    assert (tmp_path / "three").read_bytes() == once.read_bytes()


def test_statistics_are_those_of_one_process(tiny_bundle: Path, filled: Path, once: Path, tmp_path: Path) -> None:
    corpus = [part for file in sorted(filled.iterdir()) for part in ("--corpus", file)]
    ok("fit", tiny_bundle, *corpus, "--column", "text", "--out", tmp_path / "fit")
    (many, origin), (whole, other) = load_statistics(once), load_statistics(tmp_path / "fit")
    assert origin.difference(other) is None
    assert many.moments.n == whole.moments.n
    for name in ("mean", "scatter", "third", "directions"):
        np.testing.assert_allclose(getattr(many.moments, name), getattr(whole.moments, name), rtol=1e-4, atol=1e-2)
    assert sum(record.sentences for record in many.corpus) == 400
    assert len({record.sha256 for record in many.corpus}) == len(many.corpus) > 10


def test_refit_takes_them(tiny_bundle: Path, once: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    ok("refit", tiny_bundle, "--stats", once, "--whitening", "pca", "--dim", 8, "--out", tmp_path / "new")


def test_ranges_hold_consecutive_shards(
    tiny_bundle: Path, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok("embed-many", tiny_bundle, "--input", filled, "--out", tmp_path / "plan", "--plan-only")
    job = read_job(Folder(str(tmp_path / "plan")))
    assert job is not None
    monkeypatch.setattr(fitting, "MOST_RANGES", 4)
    ranges = ranges_of(job)
    assert len(ranges) == 4
    assert [number for one in ranges for number in one] == list(range(len(job.shards)))


def test_a_wrong_row_stops(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('"one"\n7\n')
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    assert "a.jsonl: row 2 " in refused("fit", tiny_bundle, "--corpus", source, "--out", out, "--workers", 1, code=1)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--workers", 2, "--max-sentences", 9), "--max-sentences"),
        (("--share", "1/2", "--corpus", "builtin:english-1"), "--share"),
        (("--workers", 100_000), "100000"),
        (("--share", "1_0/20"), "1_0/20"),
        (("--workers", 1, "--out", "no/where"), "'no'"),
    ],
)
def test_what_is_refused_before_anything_is_written(
    tiny_bundle: Path, filled: Path, tmp_path: Path, options: tuple[object, ...], name: str
) -> None:
    result = invoke(whiten, "fit", tiny_bundle, "--corpus", filled, "--out", tmp_path / "out", *options)
    assert (result.exit_code, name in result.stderr) == (2, True), result.stderr
    assert not list(tmp_path.iterdir())
