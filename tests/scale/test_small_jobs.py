"""Test that jobs of few texts have shards for several processes, and the vectors of whole shards."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from support.cli import ok
from whiten_scale.places import Folder
from whiten_scale.plan import read_job
from whiten_scale.planner import PER_SHARD, texts_per_shard


@pytest.mark.parametrize(
    ("records", "size", "shards"),
    [
        (1, 4_096, 1),
        (4_096, 4_096, 1),
        (4_097, 4_096, 2),
        (262_145, 8_192, 33),
        (10_000_000_000, PER_SHARD, 100_000),
    ],
)
def test_shards_of_a_job(records: int, size: int, shards: int) -> None:
    assert texts_per_shard(records) == size
    assert -(-records // size) == shards


@pytest.fixture
def windows_of_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let shards of small jobs have ten texts or a multiple."""
    monkeypatch.setattr("whiten_scale.planner.WINDOW", 10)


def plan(bundle: Path, source: Path, out: Path) -> list[int]:
    """Return how many records each shard has."""
    ok("embed-many", bundle, "--input", source, "--out", out, "--plan-only")
    job = read_job(Folder(str(out)))
    assert job is not None
    return [job.records(number) for number in range(len(job.shards))]


@pytest.mark.usefixtures("windows_of_ten")
def test_few_texts_are_cut_for_several_processes(tiny_bundle: Path, tmp_path: Path) -> None:
    lines = [f"a dog and {number} cats" for number in range(75)]
    (tmp_path / "in.txt").write_text("\n".join(lines), "utf-8")
    assert plan(tiny_bundle, tmp_path / "in.txt", tmp_path / "out") == [10] * 7 + [5]
    rows = [json.dumps({"text": line}) for line in lines]
    (tmp_path / "in.jsonl").write_text("\n".join(rows), "utf-8")
    assert plan(tiny_bundle, tmp_path / "in.jsonl", tmp_path / "lines") == [10] * 7 + [5]
    pyarrow.parquet.write_table(pyarrow.table({"text": lines}), tmp_path / "in.parquet")
    assert len(plan(tiny_bundle, tmp_path / "in.parquet", tmp_path / "rows")) == 8


@pytest.mark.usefixtures("windows_of_ten")
def test_many_small_files_share_shards(tiny_bundle: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(30):
        (source / f"{number:02d}.txt").write_text("a dog\na cat\nthe fox\n", "utf-8")
    assert plan(tiny_bundle, source, tmp_path / "out") == [9] * 10


@pytest.mark.usefixtures("windows_of_ten")
def test_a_job_keeps_the_size_it_began_with(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out"
    source.write_text("a dog\n" * 75, "utf-8")
    assert len(plan(tiny_bundle, source, out)) == 8
    monkeypatch.setattr("whiten_scale.planner.WINDOW", 40)
    source.touch()  # the file is read again
    assert len(plan(tiny_bundle, source, out)) == 8


def test_shards_of_whole_windows_have_the_vectors_of_one(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(f"a dog and {number} cats" for number in range(9000)), "utf-8")

    def vectors(out: str) -> np.ndarray:
        ok("embed-many", tiny_bundle, "--input", tmp_path / "in.txt", "--out", tmp_path / out, "--workers", 1)
        return np.stack(pyarrow.parquet.read_table(tmp_path / out)["embedding"].to_numpy())

    several = vectors("several")
    monkeypatch.setattr("whiten_scale.planner.SHARDS", 1)
    assert np.array_equal(several, vectors("one"))
