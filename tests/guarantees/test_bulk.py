"""Guarantees of bulk jobs, by the command `whiten embed-many` and the files that it reads and writes."""

import csv
import gzip
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest
from click.testing import Result
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from support.bundles import contents
from support.cli import MAIN, invoke, ok
from support.clusters import descendants
from support.once import once
from support.server import until
from whiten import Encoder
from whiten_runtime.commands.console import whiten

ROWS = 5000
"""Rows of each file of the input: more than a shard of a small job has."""

FILES = ("a.jsonl", "b.csv", "c.parquet")


def ids_of(name: str, count: int = ROWS) -> list[str]:
    return [f"{name[0]}{number}" for number in range(count)]


def text_of(key: str) -> str:
    return f"the {key}"


def write_file(path: Path, ids: Sequence[str]) -> None:
    rows = [{"id": key, "text": text_of(key)} for key in ids]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ("id", "text"), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files of three kinds."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        for name in FILES:
            write_file(folder / name, ids_of(name))

    return once(tmp_path_factory, "bulk-source", write)


def options(bundle: Path, source: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("embed-many", bundle, "--input", source, "--out", out, "--id", "id", *more)


@pytest.fixture(scope="module")
def undisturbed(tiny_bundle: Path, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a job that nothing disturbed."""
    return once(tmp_path_factory, "bulk-out", lambda path: ok(*options(tiny_bundle, source, path, "--workers", 1)))


def shards(out: Path) -> list[Path]:
    return sorted(out.glob("part-*.parquet"))


def rows(out: Path) -> Any:
    return pyarrow.concat_tables([pyarrow.parquet.read_table(path) for path in shards(out)])


def same_rows(out: Path, other: Path) -> bool:
    """Return whether two outputs have the same rows, in the same order."""
    return bool(rows(out).equals(rows(other)))


def process(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **more)


def check_refused(result: Result | subprocess.CompletedProcess[str], *names: object) -> None:
    """Check that a command has ended with an error in one line, which has these names."""
    code = result.exit_code if isinstance(result, Result) else result.returncode
    *_, last = result.stderr.splitlines()
    assert code in (1, 2), result.stderr
    assert last.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert all(str(name) in last for name in names), last


# B1: after kills, errors of disks and restarts, the rows are those of one undisturbed run, each once.


def test_b1_every_row_is_there_once(undisturbed: Path, tiny: Encoder) -> None:
    table, ids = rows(undisturbed), [key for name in FILES for key in ids_of(name)]
    assert len(shards(undisturbed)) > 3
    assert table["id"].to_pylist() == ids
    some = range(0, len(ids), 997)
    found = np.stack([table["embedding"][place].as_py() for place in some])
    wanted = tiny.encode([text_of(ids[place]) for place in some])
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def swap(first: Path, second: Path, cut: float) -> None:
    other = first.with_name("other")
    first.rename(other)
    second.rename(first)
    other.rename(second)


def copy_over(first: Path, second: Path, cut: float) -> None:
    shutil.copy(first, second)


def truncate(first: Path, second: Path, cut: float) -> None:
    os.truncate(first, int(cut * first.stat().st_size))


def rename(first: Path, second: Path, cut: float) -> None:
    first.rename(first.with_name("part-000009.parquet"))


def write_other(first: Path, second: Path, cut: float) -> None:
    """Write the rows of a shard as another program does."""
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(second).replace_schema_metadata(None), first)


def truncate_plan(first: Path, second: Path, cut: float) -> None:
    plan = first.with_name("_plan.json")
    os.truncate(plan, int(cut * plan.stat().st_size))


def remove_plan(first: Path, second: Path, cut: float) -> None:
    first.with_name("_plan.json").unlink()


def leave_hidden(first: Path, second: Path, cut: float) -> None:
    """Leave what a killed worker had written."""
    first.with_name(f".{first.name}.partial-1234").write_bytes(second.read_bytes()[: int(cut * 9999)])


DAMAGES = (swap, copy_over, truncate, rename, write_other, truncate_plan, remove_plan, leave_hidden)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(DAMAGES), st.permutations(range(4)), st.floats(0, 0.999))
@example(swap, [0, 1, 2, 3], 0.0)
@example(swap, [1, 2, 0, 3], 0.0)
@example(copy_over, [3, 0, 1, 2], 0.0)
@example(rename, [0, 1, 2, 3], 0.0)
@example(rename, [3, 1, 2, 0], 0.0)
@example(write_other, [1, 0, 2, 3], 0.0)
@example(truncate, [1, 0, 2, 3], 0.5)
@example(truncate_plan, [1, 0, 2, 3], 0.5)
@example(remove_plan, [1, 0, 2, 3], 0.0)
@example(leave_hidden, [1, 0, 2, 3], 0.5)
def test_b1_a_damaged_output_is_refused_or_mended(
    undisturbed: Path,
    tiny_bundle: Path,
    source: Path,
    tmp_path_factory: pytest.TempPathFactory,
    damage: Callable[[Path, Path, float], None],
    order: list[int],
    cut: float,
) -> None:
    out = Path(shutil.copytree(undisturbed, tmp_path_factory.mktemp("damaged") / "out"))
    found = shards(out)
    damage(found[order[0]], found[order[1]], cut)
    result = invoke(whiten, *options(tiny_bundle, source, out))
    if result.exit_code == 0:
        assert same_rows(out, undisturbed)
    else:
        check_refused(result, out)
    shutil.rmtree(out)


def with_a_row_more(kind: str, line: str) -> str:
    """Return two lines that have the length of one together; in .jsonl the second one is blank."""
    if kind == "jsonl":
        short = line.replace(": ", ":").replace(", ", ",")
        return short + " " * (len(line) - len(short) - 1) + "\n"
    return line.replace(" ", "\n", 1) if kind == "txt" else line.replace("the a", "t\nb,a")


def with_a_row_less(kind: str, line: str, following: str) -> str:
    """Return a line of the length of two."""
    return line.rstrip("\n") + (" " if kind == "jsonl" else "x") * len(following) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "csv", "txt"])
@pytest.mark.parametrize("count", [-20, -1, 1, 20])
def test_b1_rows_that_were_not_planned_are_refused(tiny_bundle: Path, tmp_path: Path, kind: str, count: int) -> None:
    """A file is replaced by one of the same size and time, with another number of rows."""
    source, out = tmp_path / f"a.{kind}", tmp_path / "out"
    if kind == "txt":
        source.write_text("the text\n" * 200, "utf-8")
    else:
        write_file(source, ids_of("a", 200))
    before, lines = source.stat(), source.read_text("utf-8").splitlines(keepends=True)
    command = ("embed-many", tiny_bundle, "--input", source, "--out", out)
    ok(*command, "--plan-only")
    for place in range(100, 100 + 2 * abs(count), 2):
        if count > 0:
            lines[place] = with_a_row_more(kind, lines[place])
        else:
            lines[place : place + 2] = [with_a_row_less(kind, *lines[place : place + 2]), ""]
    source.write_text("".join(lines), "utf-8")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert source.stat().st_size == before.st_size
    check_refused(invoke(whiten, *command), out)
    assert shards(out) == []


def limited(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.slow
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([1, 500, 3000, 100_000, 300_000, 540_000]), st.integers(1, 2))
def test_b1_after_errors_of_a_disk(
    undisturbed: Path,
    tiny_bundle: Path,
    source: Path,
    tmp_path_factory: pytest.TempPathFactory,
    size: int,
    workers: int,
) -> None:
    out = tmp_path_factory.mktemp("disk") / "out"
    command = options(tiny_bundle, source, out, "--workers", workers)
    check_refused(process(*command, preexec_fn=partial(limited, size)), out)
    assert {path.name for path in out.iterdir()} <= {"_plan.json", *(path.name for path in shards(undisturbed))}
    ok(*command)
    assert same_rows(out, undisturbed)
    shutil.rmtree(out)


def names_in(out: Path) -> set[str]:
    with suppress(FileNotFoundError):
        return {path.name for path in out.iterdir()}
    return set()


def kill_after(driver: "subprocess.Popen[bytes]", out: Path, changes: int, victim: str) -> None:
    """Kill a command, or one of its processes, when the names in its output have changed so often."""
    before, deadline = names_in(out), time.monotonic() + 120
    while changes and driver.poll() is None and time.monotonic() < deadline:
        now = names_in(out)
        changes, before = changes - (now != before), now
        time.sleep(0.001)
    for pid in [driver.pid] if victim == "driver" else descendants(driver.pid)[2:3]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if victim == "worker":
        with suppress(subprocess.TimeoutExpired):
            driver.wait(0.5)
    driver.kill()
    driver.wait(60)


kills = st.tuples(st.sampled_from(["driver", "worker"]), st.integers(1, 9), st.integers(1, 2))
"""Who is killed, after how many changes in the output, and the number of workers."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(kills, min_size=1, max_size=4))
@example([("driver", 1, 1), ("worker", 1, 2), ("driver", 2, 2), ("driver", 3, 1)])
def test_b1_after_kills(
    undisturbed: Path,
    tiny_bundle: Path,
    source: Path,
    tmp_path_factory: pytest.TempPathFactory,
    schedule: list[tuple[str, int, int]],
) -> None:
    out = tmp_path_factory.mktemp("killed") / "out"
    for victim, changes, workers in schedule:
        command = [sys.executable, "-c", MAIN, *map(str, options(tiny_bundle, source, out, "--workers", workers))]
        kill_after(subprocess.Popen(command, stderr=subprocess.DEVNULL), out, changes, victim)
        assert all(len(pyarrow.parquet.read_table(path)) for path in shards(out))
    ok(*options(tiny_bundle, source, out))
    assert same_rows(out, undisturbed)
    assert {path.name for path in out.glob("[!.]*")} == {path.name for path in undisturbed.iterdir()}
    shutil.rmtree(out)


@pytest.mark.slow
def test_b1_what_was_killed_leaves_nothing(undisturbed: Path, tiny_bundle: Path, source: Path, tmp_path: Path) -> None:
    """Another machine has made the shards meanwhile."""
    out = tmp_path / "out"
    command = [sys.executable, "-c", MAIN, *map(str, options(tiny_bundle, source, out, "--workers", 1))]
    driver = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    until(lambda: any("part-" in name and name not in names_in(undisturbed) for name in names_in(out)))
    for pid in reversed(descendants(driver.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    driver.wait(60)
    if not names_in(out) - names_in(undisturbed):
        raise RuntimeError("nothing is left")
    for path in shards(undisturbed):
        shutil.copy(path, out)
    ok(*options(tiny_bundle, source, out))
    assert names_in(out) == names_in(undisturbed)


@pytest.mark.slow
def test_b1_after_restarts_by_parts(undisturbed: Path, tiny_bundle: Path, source: Path, tmp_path: Path) -> None:
    """Machines share the shards, and one is stopped; the input is moved, and its files get other times."""
    out, moved = tmp_path / "out", Path(shutil.copytree(source, tmp_path / "moved"))
    for path in moved.iterdir():
        os.utime(path, (1e9, 1e9))
    ok(*options(tiny_bundle, source, out, "--share", "2/3", "--workers", 2))
    first = shards(out)[0]
    first.rename(tmp_path / "aside")
    ok(*options(tiny_bundle, moved, out, "--share", "1/2"))
    assert first not in shards(out)
    (tmp_path / "aside").rename(first)
    ok(*options(tiny_bundle, source, out))
    assert contents(out) == contents(undisturbed)


# B2: a reader can tell a finished job from a running one.

MARK = "_SUCCESS"


def test_b2_a_finished_job_is_marked(undisturbed: Path) -> None:
    assert (undisturbed / MARK).exists()


def test_b2_a_job_that_is_not_finished_is_not_marked(
    undisturbed: Path, tiny_bundle: Path, source: Path, tmp_path: Path
) -> None:
    """A shard was removed, which is another machine's."""
    out = Path(shutil.copytree(undisturbed, tmp_path / "out"))
    assert (out / MARK).exists()
    shards(out)[0].unlink()
    ok(*options(tiny_bundle, source, out, "--share", "2/2"))
    assert not (out / MARK).exists()


@pytest.mark.slow
def test_b2_whoever_finishes_last_marks_the_job(tiny_bundle: Path, source: Path, tmp_path: Path) -> None:
    command = options(tiny_bundle, source, tmp_path / "out")
    ok(*command, "--plan-only")
    for share in ("2/3", "1/3", "3/3"):
        assert not (tmp_path / "out" / MARK).exists()
        ok(*command, "--share", share)
    assert (tmp_path / "out" / MARK).exists()


# B3: a job is continued with the version, bundle and input that began it only; files can be added.


def other_version(folder: Path, name: str) -> dict[str, str]:
    """Return the environment of a process that sees version 99.7 of a distribution."""
    described = folder / f"{name}-99.7.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.7\n", "utf-8")
    commands = distribution(name).read_text("entry_points.txt")
    if commands is not None:
        (described / "entry_points.txt").write_text(commands, "utf-8")
    if name != "whiten":  # whose version is that of its distribution
        (folder / "sitecustomize.py").write_text(f"import {name}\n{name}.__version__ = '99.7'\n", "utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whiten", "onnxruntime"])
def test_b3_another_version_is_refused_by_name(
    tiny_bundle: Path,
    source: Path,
    tmp_path: Path,
    name: str,
) -> None:
    command = options(tiny_bundle, source, tmp_path / "out", "--plan-only")
    done = process(*command, env=other_version(tmp_path / "site", name))
    if done.returncode:
        raise RuntimeError(done.stderr)
    check_refused(process(*command), "99.7")


@pytest.mark.parametrize("change", ["rows", "gone", "bundle", "prompt", "type"])
def test_b3_another_job_is_refused_by_name(
    undisturbed: Path, tiny_bundle: Path, golden: Path, source: Path, tmp_path: Path, change: str
) -> None:
    out = Path(shutil.copytree(undisturbed, tmp_path / "out"))
    other, bundle, more = Path(shutil.copytree(source, tmp_path / "in")), tiny_bundle, list[object]()
    if change == "rows":
        write_file(other / "b.csv", ids_of("b", ROWS - 1))
        name = "b.csv"
    elif change == "gone":
        (other / "b.csv").unlink()
        name = "b.csv"
    elif change == "bundle":
        bundle, name = golden / "bundle-v1-int8", "bundle"
    elif change == "prompt":
        more, name = ["--prompt", "query: "], "prompt"
    else:
        more, name = ["--vector-type", "float16"], "float16"
    check_refused(invoke(whiten, *options(bundle, other, out, *more)), out, name)
    assert contents(out) == contents(undisturbed)


@pytest.mark.parametrize("name", ["d.jsonl", "0.csv", "bb.parquet"])
def test_b3_a_new_file_is_added(undisturbed: Path, tiny_bundle: Path, source: Path, tmp_path: Path, name: str) -> None:
    out, grown = Path(shutil.copytree(undisturbed, tmp_path / "out")), Path(shutil.copytree(source, tmp_path / "in"))
    write_file(grown / name, [f"new{number}" for number in range(30)])
    result = invoke(whiten, *options(tiny_bundle, grown, out))
    assert result.exit_code == 0, result.stderr
    is_new = pyarrow.compute.starts_with(rows(out)["id"], "new")
    assert rows(out).filter(pyarrow.compute.invert(is_new)).equals(rows(undisturbed))
    assert rows(out).filter(is_new)["id"].to_pylist() == [f"new{number}" for number in range(30)]


@pytest.mark.slow
def test_b3_new_ids_of_a_table_that_is_rewritten_are_added(tiny_bundle: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "table.parquet", tmp_path / "out"
    write_file(source, ids_of("t", 50))
    ok(*options(tiny_bundle, source, out))
    write_file(source, [*ids_of("t", 50), *ids_of("u", 20)])
    result = process(*options(tiny_bundle, source, out))
    assert result.returncode == 0, result.stderr
    assert sorted(rows(out)["id"].to_pylist()) == sorted([*ids_of("t", 50), *ids_of("u", 20)])


def test_b2_the_manifest_lists_rows_bytes_and_hashes(undisturbed: Path) -> None:
    content = (undisturbed / "_manifest.json").read_bytes()
    assert (undisturbed / MARK).read_text("utf-8") == f"{hashlib.sha256(content).hexdigest()}  _manifest.json\n"
    manifest = json.loads(content)
    assert manifest["rows"] == len(rows(undisturbed))
    assert [(shard["file"], shard["rows"], shard["bytes"], shard["sha256"]) for shard in manifest["shards"]] == [
        (path.name, pyarrow.parquet.read_metadata(path).num_rows, path.stat().st_size, sha256(path))
        for path in shards(undisturbed)
    ]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_b2_a_shard_that_is_made_again_is_hashed_again(
    undisturbed: Path, tiny_bundle: Path, source: Path, tmp_path: Path
) -> None:
    """Its bytes are other ones, as on another processor; their number is the same. Two machines make one each."""
    out = Path(shutil.copytree(undisturbed, tmp_path / "out"))
    manifest = json.loads((out / "_manifest.json").read_bytes())
    for number in (1, 0):
        manifest["shards"][number]["sha256"] = "0" * 64
        shards(out)[number].unlink()
    (out / "_manifest.json").write_text(json.dumps(manifest), "utf-8")
    for share in ("1/2", "2/2"):
        ok(*options(tiny_bundle, source, out, "--share", share))
    assert contents(out) == contents(undisturbed)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_b3_a_file_a_day_for_ten_days(tiny_bundle: Path, tmp_path: Path, kind: str) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    before: dict[str, bytes] = {}
    for day in range(10):
        write_file(source / f"{9 - day}.{kind}", ids_of(f"{day}", 7))  # names that go before the others
        ok(*options(tiny_bundle, source, out))
        now = contents(out)
        assert {name: now[name] for name in before} == before
        before = {name: content for name, content in now.items() if name.startswith("part-")}
        assert rows(out)["id"].to_pylist() == [key for past in range(day + 1) for key in ids_of(f"{past}", 7)]
        assert (out / MARK).exists()
    ok("embed-many", tiny_bundle, "--input", source, "--out", tmp_path / "once", "--id", "id")
    once, grown = (rows(path).sort_by("id") for path in (tmp_path / "once", out))
    assert once["id"].equals(grown["id"])
    np.testing.assert_allclose(*(np.stack(one["embedding"].to_numpy()) for one in (once, grown)), atol=1e-6)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "jsonl.gz"])
def test_b3_a_table_that_is_rewritten_each_day(tiny_bundle: Path, tmp_path: Path, kind: str) -> None:
    table, out = tmp_path / f"table.{kind}", tmp_path / "out"
    ids: list[str] = []
    for day in range(4):
        ids = sorted([*ids, *ids_of(f"{3 - day}", 9)])  # new rows go before the others
        plain = table.with_suffix("") if kind.endswith(".gz") else table
        write_file(plain, ids)
        if kind.endswith(".gz"):
            table.write_bytes(gzip.compress(plain.read_bytes()))
        if day == 2:
            shutil.move(out, tmp_path / "moved")
            out = tmp_path / "moved"
        result = invoke(whiten, *options(tiny_bundle, table, out))
        assert result.exit_code == 0, result.stderr
        assert day == 0 or "rows with new ids are added" in result.stderr
        assert sorted(rows(out)["id"].to_pylist()) == ids
        assert (out / MARK).exists()
    whole = contents(out)
    for path in shards(out)[1:]:  # of rows that the table has at other places now
        path.unlink()
    ok(*options(tiny_bundle, table, out))
    assert contents(out) == whole


@pytest.fixture
def table(tiny_bundle: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A table, and the output of a job that has embedded it."""
    path, out = tmp_path / "table.jsonl", tmp_path / "out"
    write_file(path, ids_of("t", 20))
    ok(*options(tiny_bundle, path, out))
    return path, out


def test_b3_ids_that_are_gone_are_refused(tiny_bundle: Path, table: tuple[Path, Path]) -> None:
    path, out = table
    before = contents(out)
    write_file(path, [*ids_of("t", 19), "new"])
    check_refused(invoke(whiten, *options(tiny_bundle, path, out)), out, path.name, "'t19'")
    assert contents(out) == before


def test_b3_a_table_is_rewritten_after_the_job_only(tiny_bundle: Path, table: tuple[Path, Path]) -> None:
    path, out = table
    shards(out)[0].unlink()
    write_file(path, ids_of("t", 21))
    check_refused(invoke(whiten, *options(tiny_bundle, path, out)), out, path.name, "before the job was done")


def test_b3_without_ids_a_changed_file_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "table.jsonl", tmp_path / "out"
    command = ("embed-many", tiny_bundle, "--input", path, "--out", out)
    write_file(path, ids_of("t", 20))
    ok(*command)
    write_file(path, ids_of("t", 21))
    check_refused(invoke(whiten, *command), out, path.name, "was changed")


def test_b3_a_column_of_another_type_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    command = (*options(tiny_bundle, source, out), "--keep", "n")
    (source / "a.jsonl").write_text('{"id": "a", "text": "a text", "n": 1}\n', "utf-8")
    ok(*command)
    (source / "b.jsonl").write_text('{"id": "b", "text": "a text", "n": 1.5}\n', "utf-8")
    check_refused(invoke(whiten, *command), out, "'n'", "b.jsonl")
    (source / "b.jsonl").write_text('{"id": "b", "text": "a text"}\n', "utf-8")
    check_refused(invoke(whiten, *command), "'n'", "b.jsonl")
    (source / "b.jsonl").write_text('{"id": "b", "text": "a text", "n": null}\n', "utf-8")
    ok(*command)
    assert rows(out)["n"].to_pylist() == [1, None]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whiten", "onnxruntime"])
def test_b3_another_version_goes_on_if_it_is_forced(tiny_bundle: Path, source: Path, tmp_path: Path, name: str) -> None:
    command = options(tiny_bundle, source, tmp_path / "out")
    done = process(*command, "--plan-only", env=other_version(tmp_path / "site", name))
    assert done.returncode == 0, done.stderr
    for _ in range(2):
        done = process(*command, "--force-version")
        assert done.returncode == 0, done.stderr
    check_refused(process(*command), "99.7", "--force-version")


def test_b3_rows_that_move_into_a_new_file_are_not_embedded_again(tiny_bundle: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    write_file(source / "a.jsonl", ["1", "2"])
    write_file(source / "z.jsonl", ["8", "9"])
    ok(*options(tiny_bundle, source, out))
    write_file(source / "a.jsonl", ["1", "3", "9"])
    write_file(source / "b.csv", ["2", "4"])
    os.utime(source / "z.jsonl", (1e9, 1e9))
    ok(*options(tiny_bundle, source, out))
    assert sorted(rows(out)["id"].to_pylist()) == ["1", "2", "3", "4", "8", "9"]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (pyarrow.int64(), None),
        (pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), None),
        (pyarrow.timestamp("us", "UTC"), None),
        (pyarrow.uuid(), "cannot be compared"),
    ],
    ids=str,
)
def test_b3_ids_of_other_types(tiny_bundle: Path, tmp_path: Path, kind: Any, error: str | None) -> None:
    path, out = tmp_path / "table.parquet", tmp_path / "out"
    for count in (3, 5):
        values: list[Any] = list(range(count))
        if kind == pyarrow.uuid():
            values = [bytes([number]) * 16 for number in values]
        elif pyarrow.types.is_dictionary(kind):
            values = list(map(str, values))
        texts = [text_of(str(number)) for number in range(count)]
        pyarrow.parquet.write_table(pyarrow.table({"id": pyarrow.array(values, kind), "text": texts}), path)
        result = invoke(whiten, *options(tiny_bundle, path, out))
        if error is not None and count == 5:
            check_refused(result, error)
        else:
            assert result.exit_code == 0, result.stderr
            assert len(rows(out)) == count


@pytest.mark.parametrize("first", [pyarrow.string(), pyarrow.large_string()], ids=str)
@pytest.mark.parametrize(
    "then", [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())], ids=str
)
def test_b3_all_types_of_strings_are_one(tiny_bundle: Path, tmp_path: Path, first: Any, then: Any) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for number, kind in enumerate((first, then)):
        table = pyarrow.table({"id": pyarrow.array([str(number)], kind), "text": ["a text"]})
        pyarrow.parquet.write_table(table, source / f"{number}.parquet")
        ok(*options(tiny_bundle, source, out))
    assert rows(out)["id"].to_pylist() == ["0", "1"]


def test_b3_columns_with_the_names_of_ours(tiny_bundle: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "table.jsonl", tmp_path / "out"
    command = ("embed-many", tiny_bundle, "--input", source, "--out", out, "--column", "text", "--id", "whiten.text")
    for count in (2, 3):
        lines = (json.dumps({"whiten.text": f"{number}", "text": f"text {number}"}) for number in range(count))
        source.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        ok(*command, "--keep", "text")
    assert rows(out)["whiten.text"].to_pylist() == ["0", "1", "2"]


def test_b3_wrong_rows_of_a_table_that_is_rewritten(tiny_bundle: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "table.jsonl", tmp_path / "out"
    lines = ['{"id": "a", "text": "a text"}', '{"id": "b", "text": null}']
    path.write_text("\n".join(lines), "utf-8")
    ok(*options(tiny_bundle, path, out, "--on-error", "record"))
    path.write_text("\n".join([*lines, '{"id": "c", "text": "another"}']), "utf-8")
    check_refused(invoke(whiten, *options(tiny_bundle, path, out)), "row 2", "null")
    ok(*options(tiny_bundle, path, out, "--on-error", "record"))
    assert rows(out)["id"].to_pylist() == ["a", "c"]


def test_b3_a_table_that_grows_before_its_new_rows_are_done(tiny_bundle: Path, table: tuple[Path, Path]) -> None:
    path, out = table
    write_file(path, ids_of("t", 25))
    ok(*options(tiny_bundle, path, out, "--plan-only"))
    write_file(path, ids_of("t", 30))
    result = invoke(whiten, *options(tiny_bundle, path, out))
    assert result.exit_code == 0, result.stderr
    assert "run the same command once more" in result.stderr
    assert len(rows(out)) == 25
    ok(*options(tiny_bundle, path, out))
    assert rows(out)["id"].to_pylist() == ids_of("t", 30)


def test_b3_a_machine_that_began_before_the_job_grew(
    tiny_bundle: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine adds a file, and finishes, while this one works."""
    from whiten_scale.commands import embed_many

    out, grown = tmp_path / "out", Path(shutil.copytree(source, tmp_path / "in"))
    ok(*options(tiny_bundle, source, out, "--plan-only"))
    do_items = embed_many.do_items

    def meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(embed_many, "do_items", do_items)
        write_file(grown / "d.jsonl", ["new"])
        ok(*options(tiny_bundle, grown, out))
        do_items(*arguments)

    monkeypatch.setattr(embed_many, "do_items", meanwhile)
    ok(*options(tiny_bundle, source, out, "--workers", 1))
    assert (out / MARK).exists()
    assert json.loads((out / "_manifest.json").read_bytes())["rows"] == len(rows(out)) == 3 * ROWS + 1


def test_b2_a_plan_takes_the_mark_of_a_job_that_lacks_a_shard_away(
    undisturbed: Path, tiny_bundle: Path, source: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(undisturbed, tmp_path / "out"))
    shards(out)[0].unlink()
    ok(*options(tiny_bundle, source, out, "--plan-only"))
    assert not (out / MARK).exists()
