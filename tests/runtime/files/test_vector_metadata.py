"""Test what files of vectors say of themselves, and readers that skip it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.bundles import copy_bundle
from support.cli import ok
from whiten import Encoder
from whiten_runtime.errors import DataError, UsageError, WhitenError
from whiten_runtime.files.vectors import (
    VectorMetadata,
    check_output,
    read_metadata,
    read_vectors,
    sidecar_of,
    writing_vectors,
)

SPACE = "0123456789abcdef"
METADATA = VectorMetadata(space=SPACE, bundle="b", dimension=3, normalized=False)
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def write(path: Path, rows: np.ndarray = ROWS, metadata: VectorMetadata = METADATA) -> Path:
    with writing_vectors(path, metadata) as writer:
        writer.write([str(number) for number in range(len(rows))], rows)
    return path


def test_parquet_has_the_id_alone_as_a_key_of_its_schema(tmp_path: Path) -> None:
    assert pyarrow.parquet.read_schema(write(tmp_path / "v.parquet")).metadata[b"whiten.space"] == SPACE.encode()


@given(
    kind=st.sampled_from(["npy", "parquet", "jsonl"]),
    name=st.text(max_size=9).filter(lambda text: text.isprintable()),
    prompt=st.none() | st.text(max_size=9),
    normalized=st.booleans(),
    truncated=st.none() | st.integers(4, 9),
)
def test_any_metadata_survives_and_does_not_disturb_the_vectors(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    name: str,
    prompt: str | None,
    normalized: bool,
    truncated: int | None,
) -> None:
    metadata = VectorMetadata(
        space=SPACE, bundle=name, dimension=3, normalized=normalized, prompt_name=prompt, truncated_from=truncated
    )
    file = write(tmp_path_factory.mktemp("v") / f"v.{kind}", metadata=metadata)
    assert read_metadata(file) == replace(metadata, vectors=4 if kind == "npy" else None)
    np.testing.assert_array_equal(np.concatenate(list(read_vectors(file))), ROWS)
    assert not list(file.parent.glob(".*"))


def test_files_of_other_programs_say_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", ROWS)
    assert read_metadata(tmp_path / "v.npy") is None
    sidecar_of(tmp_path / "v.npy").write_text('{"space": "mine"}')
    assert read_metadata(tmp_path / "v.npy") is None
    (tmp_path / "v.jsonl").write_text('{"whiten": [1.0, 2.0]}\n{"whiten": [3.0, 4.0]}\n')
    assert read_metadata(tmp_path / "v.jsonl") is None
    assert sum(map(len, read_vectors(tmp_path / "v.jsonl"))) == 2
    (tmp_path / "empty.jsonl").write_text("")
    assert read_metadata(tmp_path / "empty.jsonl") is None
    pyarrow.parquet.write_table(pyarrow.table({"embedding": ROWS.tolist()}), tmp_path / "v.parquet")
    assert read_metadata(tmp_path / "v.parquet") is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda content: content.update(space="x"), "space is 'x'"),
        (lambda content: content.pop("space"), "damaged"),
        (lambda content: content.update(normalized="no"), "damaged"),
        (lambda content: content.update(vectors=5), r"\[5, 3\] vectors, but v.npy holds \[4, 3\]"),
        (lambda content: content.update(dimension=2), r"\[4, 2\]"),
        (lambda content: content.clear(), "damaged"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], named: str
) -> None:
    file = write(tmp_path / "v.npy")
    content = json.loads(sidecar_of(file).read_text())
    change(content["whiten"])
    sidecar_of(file).write_text(json.dumps(content))
    with pytest.raises(DataError, match=named):
        read_metadata(file)


@pytest.mark.parametrize("content", ["", "\xff", '{"whiten": 3}'])
def test_a_sidecar_that_is_no_metadata_is_refused(tmp_path: Path, content: str) -> None:
    file = write(tmp_path / "v.npy")
    sidecar_of(file).write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=r"v\.npy\.json: its metadata is damaged"):
        read_metadata(file)


@pytest.mark.parametrize("failing", [1, 2])
def test_vectors_never_stand_beside_metadata_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    file = write(tmp_path / "v.npy")
    calls, rename = [], Path.replace

    def fail(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == failing:
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(WhitenError, match=r"v\.npy: cannot be written \(no\)"):
        write(file, ROWS[:2], VectorMetadata(space="f" * 16, bundle="other", dimension=3, normalized=False))
    assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]
    assert (read_metadata(file), len(np.load(file))) == (None, 4 if failing == 1 else 2)


def test_names_that_cannot_be_written_are_refused_before(tmp_path: Path) -> None:
    (tmp_path / "v.npy.json").mkdir()
    with pytest.raises(UsageError, match=r"v\.npy\.json' is a directory"):
        check_output(tmp_path / "v.npy")
    with pytest.raises(UsageError, match="does not exist"):
        read_metadata(tmp_path / "nowhere.npy")


def test_embed_says_what_was_done_to_the_vectors(tiny_bundle: Path, tiny: Encoder, tmp_path: Path) -> None:
    ok("embed", tiny_bundle, "a", "b", "--out", tmp_path / "v.npy", "--truncate-dim", 8, "--normalize")
    assert read_metadata(tmp_path / "v.npy") == VectorMetadata(
        space=tiny.space, bundle="bundle-v1", dimension=8, truncated_from=32, normalized=True, vectors=2
    )
    printed = ok("embed", tiny_bundle, "a").stdout.splitlines()
    ok("embed", tiny_bundle, "a", "--out", tmp_path / "v.jsonl")
    assert (tmp_path / "v.jsonl").read_text("utf-8").splitlines()[1:] == printed
    found = read_metadata(tmp_path / "v.jsonl")
    assert found == VectorMetadata(space=tiny.space, bundle="bundle-v1", dimension=32, normalized=False)


def test_embed_names_the_prompt(tmp_path: Path, golden: Path) -> None:
    bundle = copy_bundle(
        golden / "bundle-v1", tmp_path, prompts={"query": "q: ", "sts": "s: "}, default_prompt_name="query"
    )
    for options, name in (((), "query"), (("--prompt-name", "sts"), "sts"), (("--prompt", "x"), None)):
        ok("embed", bundle, "a", "--out", tmp_path / "v.parquet", "--force", *options)
        found = read_metadata(tmp_path / "v.parquet")
        assert found is not None
        assert found.prompt_name == name
