"""Guarantees of bulk jobs that are continued: with which version, bundle and input, and with which new rows."""

import gzip
import json
import os
import shutil
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest

from support.bulk import MARK, ROWS, check_refused, ids_of, options, process, rows, shards, text_of, write_file
from support.bundles import contents
from support.cli import invoke, ok
from whiten_runtime.commands.console import whiten

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
