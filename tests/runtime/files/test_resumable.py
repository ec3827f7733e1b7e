"""Test that an interrupted `whiten embed --out` goes on where it was, with the bytes of an uninterrupted one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cli import invoke, ok
from support.corpus import sentences
from whiten_runtime.commands import embed_run
from whiten_runtime.commands.main import whiten
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files import pace, resumable
from whiten_runtime.files.resumable import WindowWriter, resuming
from whiten_runtime.files.resume_state import State, difference, partial_of, state_of
from whiten_runtime.files.vector_metadata import VectorMetadata
from whiten_runtime.files.write_vectors import write_parts, writing_vectors
from whiten_runtime.inference.tuned import Machine
from whiten_runtime.ort.providers import Provider

METADATA = VectorMetadata(space="0" * 16, bundle="b", dimension=3, normalized=False)
TEXTS = [f"text {number}" for number in range(20)]
ROWS = np.arange(60, dtype=np.float32).reshape(20, 3)
KINDS = ("npy", "jsonl", "parquet")


@pytest.fixture(autouse=True)
def _saving_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SECONDS", 0.0)
    monkeypatch.setattr(pace, "SHARE", 1e9)


def fill(writer: WindowWriter, texts: Iterator[str], windows: int = 99) -> None:
    """Write windows of four texts, whose vectors are those of `ROWS`."""
    rest, done = list(texts), writer.resumed
    for start in list(range(0, len(rest), 4))[:windows]:
        part = rest[start : start + 4]
        writer.write(part, ROWS[done + start : done + start + len(part)])


def write(path: Path, said: list[str] | None = None, stop: int | None = None, **options: Any) -> None:
    """Write all texts, or stop after some windows as if interrupted."""
    texts = options.pop("texts", TEXTS)
    made_with = options.pop("made_with", {"threads": "1"})
    say = [].append if said is None else said.append
    with resuming(path, METADATA, False, made_with, lambda: iter(texts), say=say, **options) as (writer, rest):
        fill(writer, rest, 99 if stop is None else stop)
        if stop is not None:
            raise KeyboardInterrupt
        writer.finish()


def interrupt(path: Path, windows: int, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(path, stop=windows, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_file_has_the_bytes_of_a_file_written_at_once(tmp_path: Path, kind: str) -> None:
    at_once = tmp_path / f"once.{kind}"
    with writing_vectors(at_once, METADATA) as writer:
        for start in range(0, 20, 4):
            write_parts(writer, TEXTS[start : start + 4], ROWS[start : start + 4])
    path, said = tmp_path / f"v.{kind}", list[str]()
    interrupt(path, 2)
    assert not path.exists()
    partial_of(path).open("ab").write(b"half of what comes next")
    interrupt(path, 1)
    write(path, said)
    assert said == [f"going on after 12 texts, whose vectors an interrupted run left in {partial_of(path)}"]
    assert path.read_bytes() == at_once.read_bytes()
    names = {"once.npy.json", "v.npy.json"} if kind == "npy" else set()
    assert {found.name for found in tmp_path.iterdir()} == {at_once.name, path.name} | names


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"made_with": {"threads": "2"}}, "this run differs in threads: 1 -> 2"),
        ({"made_with": {"threads": "1", "prompt": "x"}}, "this run differs in prompt: none -> x"),
        (
            {"made_with": {"threads": "2", "c": "1", "b": "1", "a": "1", "d": "1"}},
            "this run differs in threads: 1 -> 2; c: none -> 1; b: none -> 1; and 2 more",
        ),
        ({"texts": ["other", *TEXTS[1:]]}, "the texts are others"),
        ({"texts": ["text 0\ntext 1", *TEXTS[2:]]}, "the texts are others"),
        ({"texts": TEXTS[:5]}, "the texts are others"),
    ],
)
def test_a_state_of_anything_else_is_not_used(tmp_path: Path, changes: Any, why: str) -> None:
    path, said = tmp_path / "v.npy", list[str]()
    interrupt(path, 2)
    write(path, said, **changes)
    assert said == [f"{partial_of(path)} is not used, and embedding begins anew: {why}"]
    assert len(np.load(path)) == len(changes.get("texts", TEXTS))
    assert not partial_of(path).exists()


@pytest.mark.parametrize("start", [0, 30, 200])
def test_long_values_are_shown_where_they_differ(start: int) -> None:
    old, new = "x" * start + "OLD" + "y" * 300, "x" * start + "NEW" + "y" * 300
    found, wanted = State.new({"prompt": old}), State.new({"prompt": new})
    why = difference(found, wanted, 0)
    assert why is not None
    assert "OLD" in why.split(" -> ")[0]
    assert "NEW" in why.split(" -> ")[1]
    assert len(why) < 200
    assert difference(State.new({"prompt": "x" * 300}), State.new({"prompt": "x" * 200}), 0) is not None


def test_texts_may_be_added_before_it_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    interrupt(path, 2, texts=TEXTS[:10])
    write(path)
    assert [json.loads(line)["text"] for line in path.read_text().splitlines()] == TEXTS


def test_restart_begins_anew(tmp_path: Path) -> None:
    path, said = tmp_path / "v.npy", list[str]()
    interrupt(path, 2)
    write(path, said, restart=True)
    assert said == []
    np.testing.assert_array_equal(np.load(path), ROWS)


def test_a_short_partial_file_is_not_used(tmp_path: Path) -> None:
    path, said = tmp_path / "v.npy", list[str]()
    interrupt(path, 2)
    os.truncate(partial_of(path), 10)
    write(path, said)
    assert "it has 10 bytes; wanted" in said[0]
    np.testing.assert_array_equal(np.load(path), ROWS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_damaged_partial_file_is_refused(tmp_path: Path, kind: str, place: str) -> None:
    path, said = tmp_path / f"v.{kind}", list[str]()
    interrupt(path, 2)
    interrupt(path, 1)  # what was hashed before an interruption counts too
    size, start = json.loads(state_of(path).read_bytes())["size"], 128 if kind == "npy" else 0
    at = {"first": start, "middle": (start + size) // 2, "last": size - 1}[place]
    content = bytearray(partial_of(path).read_bytes())
    content[at] ^= 0x10
    partial_of(path).write_bytes(content)
    kept = {found.name: found.read_bytes() for found in tmp_path.iterdir()}
    with pytest.raises(DataError, match=rf"v\.{kind}\.partial: .*; begin anew with --restart"):
        write(path, said)
    assert said == []
    assert {found.name: found.read_bytes() for found in tmp_path.iterdir()} == kept
    whole = tmp_path / f"whole.{kind}"
    write(whole)
    write(path, restart=True)
    assert path.read_bytes() == whole.read_bytes()


def test_a_state_is_used_though_the_header_was_completed_already(tmp_path: Path) -> None:
    """A run may end after it wrote the number of vectors into a .npy file, and before the file has its name."""
    path, whole = tmp_path / "v.npy", tmp_path / "whole.npy"
    write(whole)
    interrupt(path, 2)
    with partial_of(path).open("r+b") as file:
        file.write(whole.read_bytes()[:128])
    said = list[str]()
    write(path, said)
    assert said[0].startswith("going on after 8 texts")
    assert path.read_bytes() == whole.read_bytes()


def test_an_error_before_the_first_state_leaves_nothing(tmp_path: Path) -> None:
    interrupt(tmp_path / "v.npy", 0)
    assert list(tmp_path.iterdir()) == []


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "v.npy"
    made = {"threads": "1"}
    with resuming(path, METADATA, False, made, lambda: iter(TEXTS)) as (writer, texts):
        with pytest.raises(UsageError, match=r"v\.npy\.partial' is being written by another process"):
            write(path)
        fill(writer, texts)
        writer.finish()
    np.testing.assert_array_equal(np.load(path), ROWS)


def test_files_of_others_are_never_taken_for_a_state(tmp_path: Path) -> None:
    path = tmp_path / "v.npy"
    partial_of(path).write_bytes(b"precious")
    with pytest.raises(UsageError, match=r"v\.npy\.partial' exists, but not '.*v\.npy\.partial\.json' beside it"):
        write(path)
    for content in (b'{"precious": 1}', b"\xff", b"[" * 10_000):
        state_of(path).write_bytes(content)
        with pytest.raises(UsageError, match=r"is not a state of whiten embed.*; move it and '.*v\.npy\.partial' away"):
            write(path)
    assert partial_of(path).read_bytes() == b"precious"


def link(path: Path) -> None:
    (path.parent / "notes.txt").write_bytes(b"precious")
    path.symlink_to("notes.txt")


def dangling(path: Path) -> None:
    path.symlink_to("created")


@pytest.mark.parametrize("place", [partial_of, state_of])
@pytest.mark.parametrize("make", [link, dangling, os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_refused(
    tmp_path: Path, place: Callable[[Path], Path], make: Callable[[Path], None]
) -> None:
    path = tmp_path / "v.npy"
    interrupt(path, 1)
    place(path).unlink()
    make(place(path))
    before = {found.name: found.is_file() and found.read_bytes() for found in tmp_path.iterdir()}
    for restart in (False, True):
        with pytest.raises(UsageError, match=rf"{place(path).name}' is .*not a regular file; move it away"):
            write(path, restart=restart)
    assert {found.name: found.is_file() and found.read_bytes() for found in tmp_path.iterdir()} == before


@pytest.mark.parametrize("kind", KINDS)
def test_two_runs_do_not_mix_where_files_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    at_once, path = tmp_path / f"once.{kind}", tmp_path / f"v.{kind}"
    write(at_once)
    monkeypatch.setattr(resumable, "lock_descriptor", lambda descriptor: False)
    made = {"threads": "1"}
    with ExitStack() as first, ExitStack() as second:
        one, texts = first.enter_context(resuming(path, METADATA, False, made, lambda: iter(TEXTS)))
        other, others = second.enter_context(resuming(path, METADATA, False, made, lambda: iter(["x"])))
        fill(one, iter(list(texts)[:8]))
        other.write(list(others), -ROWS[:1])
        assert other.finish() == 1
        second.close()
        if kind == "npy":
            np.testing.assert_array_equal(np.load(path), -ROWS[:1])
        for start in range(8, 20, 4):
            one.write(TEXTS[start : start + 4], ROWS[start : start + 4])
        assert one.finish() == 20
    assert path.read_bytes() == at_once.read_bytes()
    assert not [found for found in tmp_path.iterdir() if "partial" in found.name]
    interrupt(path, 3)
    assert path.read_bytes() == at_once.read_bytes()
    assert not [found for found in tmp_path.iterdir() if "partial" in found.name]


def test_a_state_is_not_used_where_files_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said = tmp_path / "v.npy", list[str]()
    interrupt(path, 2)
    kept = partial_of(path).read_bytes()
    monkeypatch.setattr(resumable, "lock_descriptor", lambda descriptor: False)
    write(path, said)
    assert said == [
        f"{partial_of(path)} is not used, and embedding begins anew: the file system does not lock files; if no other "
        "process writes it, delete it"
    ]
    np.testing.assert_array_equal(np.load(path), ROWS)
    assert partial_of(path).read_bytes() == kept


def test_the_state_of_a_link_is_beside_the_file_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path, said = tmp_path / "v.npy", list[str]()
    path.symlink_to(Path("real") / "w.npy")
    interrupt(path, 2)
    kept = tmp_path / "real" / "w.npy.partial"
    assert (partial_of(path), state_of(path)) == (kept, kept.with_name("w.npy.partial.json"))
    assert kept.exists()
    write(path, said)
    assert said == [f"going on after 8 texts, whose vectors an interrupted run left in {kept}"]
    np.testing.assert_array_equal(np.load(path), ROWS)


NEWER = b'{"format": 3, "made_with": {"all": [1]}, "windows": 5, "size": 5}'


def test_the_state_of_another_format_is_not_used(tmp_path: Path) -> None:
    path, said = tmp_path / "v.npy", list[str]()
    interrupt(path, 2)
    state_of(path).write_bytes(NEWER)
    write(path, said)
    why = "its state has format 3, but this version of whiten writes 2"
    assert said == [f"{partial_of(path)} is not used, and embedding begins anew: {why}"]
    np.testing.assert_array_equal(np.load(path), ROWS)


@pytest.mark.parametrize(
    "content",
    [
        NEWER,
        b'{"made_with": {}}',
        b'{"format": 2, "made_with": {}, "texts": -1, "size": -5, "sha256": "", "content_sha256": ""}',
        b'{"format": 2, "made_with": {}, "texts": "8", "size": 5, "sha256": "", "content_sha256": ""}',
        b'{"format": 2, "made_with": {}, "texts": 0, "size": 0, "sha256": "", "content_sha256": "", "more": 1}',
    ],
)
def test_restart_replaces_states_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "v.npy"
    interrupt(path, 2)
    state_of(path).write_bytes(content)
    if content != NEWER:
        with pytest.raises(UsageError, match=r"cannot be read .*; begin anew with --restart"):
            write(path)
    write(path, restart=True)
    np.testing.assert_array_equal(np.load(path), ROWS)
    assert not state_of(path).exists()


@pytest.mark.parametrize(
    "content", [b'{"precious": 1}', b"\xff", b"[" * 10_000, b"hi", b'["made_with"]', b'{"format": 2}']
)
def test_restart_leaves_files_of_others(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "v.npy"
    state_of(path).write_bytes(content)
    with pytest.raises(UsageError, match="is not a state of whiten embed"):
        write(path, restart=True)
    assert {found.name: found.read_bytes() for found in tmp_path.iterdir()} == {state_of(path).name: content}


def request(normalize: bool = False, truncate_dim: int | None = None) -> embed_run.Request:
    """Return what `whiten embed` is asked for by default."""
    return embed_run.Request(
        texts=(),
        source="texts.txt",
        column=None,
        out=Path("v.npy"),
        prompt_name=None,
        prompt=None,
        normalize=normalize,
        truncate_dim=truncate_dim,
        precision="float32",
        batch_size=None,
        max_characters=None,
        header=False,
        restart=False,
        as_json=False,
    )


def made_with(bundle: Path, providers: Sequence[Provider] | None = None, threads: int | None = None) -> dict[str, str]:
    """Return what `whiten embed` writes into a state."""
    with Encoder(bundle, providers, threads) as encoder:
        return embed_run._Run(encoder, request(), "", METADATA).made_with(Path("v.npy"))


def test_a_state_names_all_that_decides_on_the_numbers(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = golden / "bundle-v1"
    plain = made_with(bundle, threads=1)
    assert plain == made_with(bundle, threads=1)
    assert (plain["batch size"], plain["characters"]) == ("default", "default")
    other = made_with(bundle, [("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})], 1)
    assert [name for name in plain if other[name] != plain[name]] == ["provider"]
    assert "threads" in {name for name, value in made_with(bundle, threads=2).items() if value != plain[name]}
    machine = Machine(processor="another", features=("AVX2",), cpus=1)
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: machine))
    assert [name for name, value in made_with(bundle, threads=1).items() if value != plain[name]] == ["processor"]
    monkeypatch.undo()
    monkeypatch.setattr(embed_run, "version", lambda name: "0" if name == "tokenizers" else version(name))
    assert [name for name, value in made_with(bundle, threads=1).items() if value != plain[name]] == ["versions"]


_COMMAND = """
import sys
from whiten_runtime.files import pace, resumable
pace.SECONDS, pace.SHARE = 0.0, 1e9
from whiten_runtime.commands.main import main
main()
"""


@pytest.mark.slow
def test_embed_killed_goes_on_and_gives_the_same_bytes(tiny_bundle: Path, tmp_path: Path) -> None:
    """Kill the command as soon as it has saved a state, and run it again."""
    texts = tmp_path / "t.txt"
    texts.write_text("".join(f"{text} {number}\n" for number in range(6) for text in sentences(1500)), "utf-8")
    out = tmp_path / "v.npy"
    arguments = ["embed", tiny_bundle, "--input", texts, "--out", out, "--threads", "1"]
    with subprocess.Popen([sys.executable, "-c", _COMMAND, *arguments], stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not _saved(out):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    kept = json.loads(state_of(out).read_bytes())["texts"]
    assert kept
    assert kept % 4096 == 0
    again = ok(*arguments)
    assert f"going on after {kept:,} texts" in again.stderr
    whole = tmp_path / "whole.npy"
    ok(*["embed", tiny_bundle, "--input", texts, "--out", whole, "--threads", "1"])
    assert out.read_bytes() == whole.read_bytes()
    assert not partial_of(out).exists()
    assert not state_of(out).exists()


def _saved(out: Path) -> bool:
    try:
        return bool(json.loads(state_of(out).read_bytes())["texts"])
    except FileNotFoundError:
        return False


def test_embed_begins_anew_with_other_options(tiny_bundle: Path, tmp_path: Path) -> None:
    texts, out = tmp_path / "t.txt", tmp_path / "v.jsonl"
    texts.write_text("".join(f"{text}\n" for text in sentences(600)) * 14 + "\0\n", "utf-8")
    failed = invoke(whiten, "embed", tiny_bundle, "--input", texts, "--out", out)
    assert (failed.exit_code, not out.exists()) == (1, True)
    assert "the vectors of 4,096 texts are kept in" in failed.stderr
    texts.write_text("".join(f"{text}\n" for text in sentences(600)) * 14, "utf-8")
    again = ok("embed", tiny_bundle, "--input", texts, "--out", out, "--normalize", "--json")
    assert "embedding begins anew: this run differs in normalized: false -> true\n" in again.stderr
    assert "resumed" not in json.loads(again.stdout)
    assert json.loads(again.stdout)["texts"] == 8400


def state(bundle: Path, threads: int, normalize: bool = False, truncate_dim: int | None = None) -> State:
    with Encoder(bundle, threads=threads) as encoder:
        metadata = VectorMetadata.of(encoder.manifest, normalize, truncate_dim)
        run = embed_run._Run(encoder, request(normalize, truncate_dim), "", metadata)
        return State.new(run.made_with(Path("v.npy")))


def test_every_option_that_differs_is_named(golden: Path) -> None:
    bundle = golden / "bundle-v1"
    plain = state(bundle, 2)
    assert difference(plain, state(bundle, 2), 0) is None
    assert difference(plain, state(bundle, 2, normalize=True), 0) == "this run differs in normalized: false -> true"
    shorter = difference(plain, state(bundle, 2, truncate_dim=8), 0)
    assert shorter == "this run differs in dimension: 32 -> 8; truncated_from: null -> 32"
    fewer = difference(plain, state(bundle, 1), 0)
    assert fewer is not None
    assert fewer.startswith("this run differs in threads: 2 -> 1; ")
    assert "Schedule(" not in fewer
