"""Guarantees of bulk jobs, by the command `whiten embed-many` and the files that it reads and writes."""

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from support.bulk import (
    FILES,
    MARK,
    check_refused,
    ids_of,
    options,
    process,
    rows,
    same_rows,
    shards,
    text_of,
    write_file,
)
from support.bundles import contents
from support.cli import MAIN, invoke, ok
from support.clusters import descendants
from support.server import until
from whiten import Encoder
from whiten_runtime.commands.console import whiten

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


def test_b2_a_plan_takes_the_mark_of_a_job_that_lacks_a_shard_away(
    undisturbed: Path, tiny_bundle: Path, source: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(undisturbed, tmp_path / "out"))
    shards(out)[0].unlink()
    ok(*options(tiny_bundle, source, out, "--plan-only"))
    assert not (out / MARK).exists()
