"""Test `whiten embed-many`: bytes for any number of workers, resuming, wrong rows, what is refused."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from support.bundles import contents, copy_bundle
from support.cli import invoke, ok, refused
from whiten import Encoder
from whiten_runtime.commands.console import whiten
from whiten_runtime.files.rows import read_texts
from whiten_runtime.files.vectors import read_metadata, read_vectors
from whiten_runtime.inference.embedder import Embedder
from whiten_scale import commands, places, shard, workers
from whiten_scale.places import Folder
from whiten_whitening.codes import Coder


@pytest.fixture(autouse=True)
def _small_shards(texts_per_shard: Callable[[int], None]) -> None:
    texts_per_shard(64)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do items here instead of in processes of their own."""

    def run(work: workers.Work, items: list[int], count: int) -> Iterator[int]:
        do = workers.open_once(msgspec.json.encode(work))
        for item in items:
            do(item)
            yield item

    monkeypatch.setattr(commands, "run_items", run)


def embed(bundle: Path, source: Path, out: Path, *options: object) -> dict[str, Any]:
    result = ok("embed-many", bundle, "--input", source, "--out", out, "--json", *options)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def table_of(folder: Path) -> Any:
    """Read a folder of shards as one table."""
    return pyarrow.concat_tables([pyarrow.parquet.read_table(path) for path in sorted(folder.glob("*.parquet"))])


def vectors_of(table: Any, column: str = "embedding") -> Any:
    return np.stack(table[column].to_numpy())


@pytest.mark.usefixtures("in_process")
def test_every_text_has_its_vector(tiny: Encoder, tiny_bundle: Path, filled: Path, tmp_path: Path) -> None:
    embed(tiny_bundle, filled, tmp_path / "out", "--id", "id", "--keep", "text", "--keep", "topic")
    table = table_of(tmp_path / "out")
    assert table.schema.names == ["id", "text", "topic", "embedding"]
    texts = [text for file in sorted(filled.iterdir()) for text in read_texts(file, "text")]
    assert table["text"].to_pylist() == texts
    letters = {"c": "news", "j": "sport", "t": "talk", "p": "film"}
    assert table["topic"].to_pylist() == [letters[one[0]] for one in table["id"].to_pylist()]
    assert table["id"].to_pylist() == [f"{'cjtp'[number // 100]}{number}" for number in range(400)]
    np.testing.assert_allclose(vectors_of(table), tiny.encode(texts), atol=1e-5)


@pytest.mark.usefixtures("in_process")
def test_types_of_vectors(tiny: Encoder, tiny_bundle: Path, filled: Path, tmp_path: Path) -> None:
    got = {}
    for stored in ("float32", "float16", "int8", "codes"):
        embed(tiny_bundle, filled / "d.parquet", tmp_path / stored, "--vector-type", stored)
        got[stored] = vectors_of(table_of(tmp_path / stored), "code" if stored == "codes" else "embedding")
    texts = list(read_texts(filled / "d.parquet", "text"))
    assert [got[one].dtype for one in got] == [np.float32, np.float16, np.int8, np.uint8]
    np.testing.assert_array_equal(got["float16"], got["float32"].astype(np.float16))
    assert np.abs(got["int8"].astype(int) - tiny.encode(texts, precision="int8")).max() <= 1
    coder = Coder.of(tiny_bundle)
    np.testing.assert_array_equal(got["codes"], coder.encode_array(got["float32"]))
    path, coded = (tmp_path / name / "part-000000.parquet" for name in ("float32", "codes"))
    metadata = read_metadata(path)
    assert metadata is not None
    assert metadata.space == tiny.space
    np.testing.assert_array_equal(np.concatenate(list(read_vectors(path))), got["float32"][:60])
    assert pyarrow.parquet.read_schema(coded).metadata[b"whiten.coder"] == coder.id.encode()


@pytest.mark.usefixtures("in_process")
def test_options_of_vectors(tiny: Encoder, tiny_bundle: Path, filled: Path, tmp_path: Path) -> None:
    options = ("--normalize", "--truncate-dim", 5, "--prompt", "query: ")
    embed(tiny_bundle, filled / "d.parquet", tmp_path / "out", *options)
    texts = list(read_texts(filled / "d.parquet", "text"))
    want = tiny.encode(texts, normalize_embeddings=True, truncate_dim=5, prompt="query: ")
    np.testing.assert_allclose(vectors_of(table_of(tmp_path / "out")), want, atol=1e-5)


@pytest.mark.usefixtures("in_process")
def test_a_second_run_embeds_nothing_but_a_missing_shard(tiny_bundle: Path, filled: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert embed(tiny_bundle, filled, out)["embedded"] == 10
    before = contents(out)
    assert embed(tiny_bundle, filled, out)["embedded"] == 0
    (out / "part-000004.parquet").unlink()
    (out / ".part-000004.parquet.partial-0123abcd").write_bytes(b"half")
    again = embed(tiny_bundle, filled, out)
    assert (again["embedded"], again["resumed"], again["rows"]) == (1, 9, 400)
    assert contents(out) == before


@pytest.mark.usefixtures("in_process")
def test_a_shard_that_is_removed_during_the_run(
    tiny_bundle: Path, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    arguments = ("embed-many", tiny_bundle, "--input", filled, "--out", out)
    run = commands.run_items

    def remove_one(*given: Any) -> Iterator[int]:
        yield from run(*given)
        (out / "part-000003.parquet").unlink()

    with monkeypatch.context() as patched:
        patched.setattr(commands, "run_items", remove_one)
        error = refused(*arguments, code=1)
    assert f"{out}/part-000003.parquet" in error
    ok(*arguments)
    assert len(contents(out)) == 13


@pytest.mark.usefixtures("in_process")
def test_machines_share_the_shards(tiny_bundle: Path, filled: Path, tmp_path: Path) -> None:
    embed(tiny_bundle, filled, tmp_path / "one")
    counts = [embed(tiny_bundle, filled, tmp_path / "many", "--share", f"{k}/3")["embedded"] for k in (2, 3, 1)]
    assert counts == [3, 3, 4]
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


@pytest.mark.usefixtures("in_process")
def test_the_input_may_move_but_not_change(tiny_bundle: Path, filled: Path, tmp_path: Path) -> None:
    out, moved = tmp_path / "out", tmp_path / "moved"
    embed(tiny_bundle, filled, out)
    shutil.copytree(filled, moved)
    assert embed(tiny_bundle, moved, out)["embedded"] == 0
    content = (moved / "c.tsv").read_text("utf-8")
    (moved / "c.tsv").write_text(content.replace("t205\t", "t206\t"), "utf-8")
    assert "c.tsv" in refused("embed-many", tiny_bundle, "--input", moved, "--out", out)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("option", ["prompt", "prompt-name"])
@pytest.mark.parametrize("value", ["default", "None"])
def test_no_prompt_is_none_of_any_text(
    tiny_bundle: Path, filled: Path, tmp_path: Path, option: str, value: str
) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path / "bundle", prompts={value: "query: "})
    again = ("embed-many", bundle, "--input", filled / "d.parquet", "--out")
    without, within = ("--plan-only",), ("--plan-only", f"--{option}", value)
    for first, second in ((without, within), (within, without)):
        out = tmp_path / str(len(first))
        ok(*again, out, *first)
        assert option.replace("-", "_") in refused(*again, out, *second)
        ok(*again, out, *first)


@pytest.mark.usefixtures("in_process")
def test_files_of_others_are_refused_by_name(tiny_bundle: Path, filled: Path, tmp_path: Path) -> None:
    arguments = ("embed-many", tiny_bundle, "--input", filled, "--out")
    for name in ("part-000002.parquet", "part-000010.parquet", "mine.parquet"):
        out = tmp_path / name
        ok(*arguments, out, "--plan-only")
        pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), out / name)
        assert str(out / name) in refused(*arguments, out)
        assert (out / name).exists()
        assert len(list(out.iterdir())) == 2
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").touch()
    assert "notes.txt" in refused(*arguments, full)
    (full / "notes.txt").rename(full / "_plan.json")
    assert "_plan.json" in refused(*arguments, full)


@pytest.mark.usefixtures("in_process")
def test_the_plan_alone_in_json(tiny_bundle: Path, filled: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    planned = embed(tiny_bundle, filled, out, "--plan-only")
    done = embed(tiny_bundle, filled, out)
    assert planned.pop("records") >= done["rows"]  # empty lines are records, too
    assert planned == {name: done[name] for name in ("out", "planned", "key")}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("name", ["in/out", "in/a/out", "link/out", "in/_out", "in/a/_old/out"])
def test_an_output_in_the_input_is_not_read(tiny_bundle: Path, filled: Path, tmp_path: Path, name: str) -> None:
    given = Path(shutil.copytree(filled, tmp_path / "in"))
    (tmp_path / "link").symlink_to(given)
    first = embed(tiny_bundle, given, tmp_path / name)
    for source in (given, tmp_path / "link"):
        again = embed(tiny_bundle, source, tmp_path / name)
        assert (again["resumed"], again["key"]) == (first["planned"], first["key"])


def test_a_plan_that_another_job_writes_just_before_is_the_others(
    tiny_bundle: Path, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found no plan, and have made one; the other writes its own first."""
    out, create = tmp_path / "out", Folder.create

    def after_another(folder: Folder, name: str, content: bytes) -> None:
        monkeypatch.setattr(Folder, "create", create)
        ok("embed-many", tiny_bundle, "--input", filled, "--out", out, "--normalize", "--plan-only")
        folder.create(name, content)

    monkeypatch.setattr(Folder, "create", after_another)
    again = ("embed-many", tiny_bundle, "--input", filled, "--out", out)
    assert "normalize" in refused(*again)
    assert [path.name for path in out.iterdir()] == ["_plan.json"]
    ok(*again, "--normalize", "--plan-only")


@pytest.mark.parametrize("stamped", [True, False])
def test_a_change_is_seen_without_etag_and_without_any_time(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stamped: bool
) -> None:
    if not stamped:
        monkeypatch.setattr(places, "_STAMPS", ())
    source = Folder(f"memory://{tmp_path.name}")
    again = ("embed-many", tiny_bundle, "--plan-only", "--input", source.url, "--out", tmp_path / "out")
    source.write("a.txt", b"one\ntwo\n")
    ok(*again)
    ok(*again)
    source.write("a.txt", b"one\nten\n")
    assert "a.txt" in refused(*again)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("source", "out"),
    [
        ("link/**/*.parquet", "real/v"),
        ("real/**/*.parquet", "link/v"),
        ("real", "away"),
        ("real/**/*.parquet", "real/deep"),
    ],
)
def test_an_output_is_known_through_links(
    tiny_bundle: Path, filled: Path, tmp_path: Path, source: str, out: str
) -> None:
    (tmp_path / "real").mkdir()
    shutil.copy(filled / "d.parquet", tmp_path / "real" / "d.parquet")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "away").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "real" / "deep").symlink_to("../other")
    first = embed(tiny_bundle, tmp_path / source, tmp_path / out)
    (tmp_path / "real" / "above").symlink_to("../away")
    (tmp_path / "real" / "part.parquet").symlink_to(tmp_path / out / "part-000000.parquet")
    again = embed(tiny_bundle, tmp_path / source, tmp_path / out)
    assert (again["resumed"], again["key"]) == (first["planned"], first["key"])


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """Files with five rows that hold no text."""
    folder = tmp_path / "spoilt"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b'{"text": "one"}\n{"text": NaN}\n\n{"text": "two"}\n{"text": 7}\n')
    (folder / "b.csv").write_bytes(b'n,text\n1,"three\nfour"\n2,\xe9\n3,five,six\n4,seven\n')
    pyarrow.parquet.write_table(pyarrow.table({"text": ["eight", None, "nine"]}), folder / "c.parquet")
    return folder


WRONG = [("a.jsonl", 2), ("a.jsonl", 5), ("b.csv", 4), ("b.csv", 5), ("c.parquet", 2)]


def test_a_wrong_row_stops_and_can_be_recorded_afterwards(
    tiny_bundle: Path, spoilt: Path, tmp_path: Path, texts_per_shard: Callable[[int], None]
) -> None:
    texts_per_shard(2)
    arguments = ("embed-many", tiny_bundle, "--input", spoilt, "--out", tmp_path / "out")
    error = refused(*arguments, "--workers", 1, code=1)
    assert "a.jsonl: row 2 " in error
    assert not list((tmp_path / "out").glob("*.parquet"))
    for share in ("2/2", "1/2"):
        found = json.loads(ok(*arguments, "--on-error", "record", "--share", share, "--json", "--workers", 2).stdout)
    assert (found["rows"], found["blank"], found["wrong"]) == (6, 1, 5)
    lines = map(json.loads, (tmp_path / "out" / "_errors.jsonl").read_text("utf-8").splitlines())
    assert [(line["file"], line["row"]) for line in lines if line["reason"]] == WRONG
    table = table_of(tmp_path / "out")
    assert table.schema.names == ["file", "row", "embedding"]  # files and rows stand for ids
    assert table["file"].to_pylist() == [name for name in ("a.jsonl", "b.csv", "c.parquet") for _ in range(2)]
    assert table["row"].to_pylist() == [1, 4, 2, 6, 1, 3]
    (tmp_path / "out" / "_errors.jsonl").unlink()
    ok(*arguments)
    assert len((tmp_path / "out" / "_errors.jsonl").read_text("utf-8").splitlines()) == 5


REFUSED = [
    *((("--share", text), f"'{text}'") for text in ("", "1", "0/2", "3/2", "1/0", "1/2/3", "1.0/2", "²/3")),
    (("--out", " "), "--out"),
    (("--workers", 100_000), "100000"),
    (("--prompt", "a", "--prompt-name", "b"), "prompt_name"),
    (("--bytes", "2"), "--bytes"),
    (("--vector-type", "codes", "--normalize"), "--normalize"),
    (("--id", "key"), "'key'"),
    (("--keep", "row"), "'row'"),
    (("--input", "nowhere"), "'nowhere'"),
    (("--prompt-name", "zz"), "zz"),
    (("--truncate-dim", 9999), "9999"),
    (("--vector-type", "codes", "--bytes", 9999), "9999"),
    (("--input", "s4://bucket/key"), "'s4://bucket/key'"),
]


@pytest.mark.parametrize(("options", "name"), REFUSED)
def test_what_is_refused_before_anything_is_written(
    options: tuple[str, ...], name: str, tiny_bundle: Path, filled: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = invoke(whiten, "embed-many", tiny_bundle, "--input", filled, "--out", out, *options)
    assert (result.exit_code, name in result.stderr, out.exists()) == (2, True, False), result.stderr


@pytest.mark.usefixtures("in_process")
def test_a_bundle_that_is_replaced_meanwhile_is_refused(
    tiny_bundle: Path, golden: Path, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "bundle_hash", lambda path: "0" * 64)
    assert str(tiny_bundle) in refused("embed-many", tiny_bundle, "--input", filled, "--out", tmp_path / "out")


def test_first_object_without_the_text_is_a_wrong_row(tiny_bundle: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"id": "a1"}\n{"id": "a2", "text": "second"}\n{"id": "a3", "text": "third"}\n')
    assert "a.jsonl: row 1 " in refused(
        "embed-many", tiny_bundle, "--input", source, "--out", tmp_path / "out", "--id", "id", code=1
    )


def test_links_to_directories_and_files_are_followed(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "in").mkdir()
    for name in ("link", "again"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "b.txt").symlink_to(tmp_path / "elsewhere" / "a.txt")
    for count, source in ((6, "in"), (2, "in/*.txt")):
        assert embed(tiny_bundle, tmp_path / source, tmp_path / str(count), "--plan-only")["records"] == count


@pytest.mark.usefixtures("in_process")
def test_home_is_one_place(tiny_bundle: Path, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    ok("embed-many", tiny_bundle, "--input", filled, "--out", "~/vectors")
    assert (tmp_path / "home" / "vectors" / "_plan.json").is_file()
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("command", ["embed-many", "fit"])
@pytest.mark.parametrize("place", ["here", "in.link", "./here", "file://{}/here"])
def test_workers_may_run_in_another_directory(
    tiny_bundle: Path, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, place: str
) -> None:
    """As those of a cluster that was started elsewhere: every path that they get is whole."""

    def run(work: workers.Work, items: list[int], count: int) -> Iterator[int]:
        monkeypatch.chdir(tmp_path / "elsewhere")
        do = workers.open_once(msgspec.json.encode(work))
        for item in items:
            do(item)
        monkeypatch.chdir(tmp_path)
        yield from items

    monkeypatch.setattr(commands, "run_items", run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "bundle").symlink_to(tiny_bundle)
    (tmp_path / "here").symlink_to(filled)
    (tmp_path / "in.link").symlink_to("here")
    source = "--input" if command == "embed-many" else "--corpus"
    ok(command, "bundle", source, place.format(tmp_path), "--out", "new", "--workers", 1)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (tmp_path / "new").is_dir() or (tmp_path / "new").is_file()
    if command == "embed-many":
        assert len(list((tmp_path / "new").glob("part-*.parquet"))) == 10


def test_names_that_are_not_utf8_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Path(os.fsdecode(bytes(tmp_path / "in") + b"/\xff.txt")).write_text("one\n")
    assert "UTF-8" in refused("embed-many", tiny_bundle, "--input", tmp_path / "in", "--out", tmp_path / "out")


def test_names_of_inputs(tiny_bundle: Path, filled: Path, tmp_path: Path) -> None:
    arguments = ("embed-many", tiny_bundle, "--plan-only", "--out")
    (tmp_path / "in" / "_old").mkdir(parents=True)
    for name in ("a.txt", "notes.md", "_old/b.txt", ".c.txt"):
        (tmp_path / "in" / name).write_text("one\n")
    planned = ok(*arguments, tmp_path / "1", "--input", tmp_path / "in", "--json")
    assert "notes.md" in planned.stderr
    assert json.loads(planned.stdout)["records"] == 1
    for inputs in (("", "a.txt"), ("notes.md",), ("n*.md",)):
        given = [part for name in inputs for part in ("--input", tmp_path / "in" / name)]
        assert inputs[-1] in refused(*arguments, tmp_path / "2", *given)
    ok(*arguments, tmp_path / "3", "--input", filled / "*.parquet", "--input", tmp_path / "in" / "a.txt")


@pytest.mark.usefixtures("in_process")
def test_a_bundle_without_vectors_in_float16_is_refused(
    tiny_bundle: Path, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Embedder, "embed", lambda self, texts, options: np.full((len(texts), 32), 1e5, np.float32))
    arguments = ("embed-many", tiny_bundle, "--input", filled, "--out", tmp_path / "out", "--vector-type", "float16")
    assert str(tiny_bundle) in refused(*arguments, code=1)


@pytest.mark.usefixtures("in_process")
def test_long_texts_wait_for_their_window_no_longer_than_is_read(
    tiny: Encoder, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{number} {'word ' * 40_000}" for number in range(40)]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    sizes = []
    windows = shard._windows

    def watched(tables: Iterator[Any], size: int) -> Iterator[Any]:
        for table in windows(tables, size):
            sizes.append(table.column(0).nbytes)
            yield table

    monkeypatch.setattr(shard, "_windows", watched)
    embed(tiny_bundle, tmp_path / "a.parquet", tmp_path / "out")
    assert max(sizes) < 41 * (tiny._embedder.max_characters + 8) < 41 * len(texts[0])
    np.testing.assert_allclose(vectors_of(table_of(tmp_path / "out")), tiny.encode(texts), atol=1e-5)


@pytest.mark.slow
def test_files_do_not_depend_on_the_number_of_workers(tiny_bundle: Path, filled: Path, tmp_path: Path) -> None:
    found = [embed(tiny_bundle, filled, tmp_path / f"{n}", "--workers", n) for n in (1, 2, 3)]
    assert [(one["rows"], one["shards"], one["blank"]) for one in found] == [(400, 10, 99)] * 3
    first, second, third = (contents(tmp_path / name) for name in ("1", "2", "3"))
    assert first == second == third
    assert sorted(first)[:4] == ["_SUCCESS", "_manifest.json", "_plan.json", "part-000000.parquet"]
