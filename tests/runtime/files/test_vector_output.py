"""Test files of vectors and of codes: which are replaced, which have metadata, and messages for damaged ones."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from support.cli import ok, refused
from whiten import Encoder
from whiten_runtime.errors import DataError
from whiten_runtime.files.vectors import read_metadata, read_vectors


@pytest.mark.parametrize("kind", ["npy", "parquet", "jsonl"])
def test_a_file_is_replaced_only_with_force(tiny_bundle: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / f"v.{kind}"
    out.touch()  # an empty file is lost to nobody
    ok("embed", tiny_bundle, "a", "--out", out)
    before = out.read_bytes()
    assert f"{out}' exists; replace it with --force" in refused("embed", tiny_bundle, "b", "--out", out)
    assert out.read_bytes() == before
    ok("embed", tiny_bundle, "b", "--out", out, "--force")
    assert out.read_bytes() != before


def test_a_sidecar_of_others_is_not_lost(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "v.npy.json").write_text('{"precious": 1}')
    assert "v.npy.json' exists" in refused("embed", tiny_bundle, "a", "--out", tmp_path / "v.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["v.npy.json"]


def test_a_pipe_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "v.jsonl")
    assert "is not a regular file" in refused("embed", tiny_bundle, "a", "--out", tmp_path / "v.jsonl")


def test_a_link_stays_a_link(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "v.jsonl").symlink_to(tmp_path / "real" / "v.jsonl")
    ok("embed", tiny_bundle, "a", "--out", tmp_path / "v.jsonl")
    assert (tmp_path / "v.jsonl").is_symlink()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["v.jsonl"]


def linked(tmp_path: Path, name: str) -> tuple[Path, Path]:
    """Return a link link/v.npy, and the file real/NAME that it leads to, which does not exist."""
    (tmp_path / "link").mkdir()
    (tmp_path / "real").mkdir()
    link, real = tmp_path / "link" / "v.npy", tmp_path / "real" / name
    link.symlink_to(Path("..") / "real" / name)
    return link, real


@pytest.mark.parametrize("name", ["w.npy", "blob"])
def test_a_link_and_what_it_leads_to_have_the_metadata_of_their_vectors(
    tiny_bundle: Path, tmp_path: Path, name: str
) -> None:
    link, real = linked(tmp_path, name)
    texts = ("one", "two")
    ok("embed", tiny_bundle, *texts, "--out", link)
    for options in ([], ["--normalize"], ["--truncate-dim", 5]):
        ok("embed", tiny_bundle, *texts, "--out", link, *options, "--force")
        at_once = tmp_path / "at_once.npy"
        ok("embed", tiny_bundle, *texts, "--out", at_once, *options, "--force")
        assert link.read_bytes() == at_once.read_bytes()
        assert read_metadata(link) == read_metadata(at_once) is not None
        if name == "w.npy":
            assert read_metadata(real) == read_metadata(link)
    assert sorted(path.name for path in link.parent.iterdir()) == ["v.npy", "v.npy.json"]
    assert sorted(path.name for path in real.parent.iterdir()) == sorted({name} | {"w.npy.json"} & {f"{name}.json"})


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("kind", ["npy", "parquet", "jsonl"])
def test_embed_writes_codes(tiny_bundle: Path, tiny: Encoder, tmp_path: Path, kind: str, precision: Any) -> None:
    out, texts = tmp_path / f"v.{kind}", ["a text", "another", ""]
    result = ok("embed", tiny_bundle, *texts, "--out", out, "--vector-type", precision, "--normalize", "--json")
    assert json.loads(result.stdout)["precision"] == precision
    found = read_metadata(out)
    assert found is not None
    want = tiny.encode(texts, precision=precision, normalize_embeddings=True)
    assert (found.precision, found.dimension, found.normalized) == (precision, 32, True)
    assert (found.columns, found.dtype) == (want.shape[1], want.dtype)
    printed = ok("embed", tiny_bundle, *texts, "--vector-type", precision, "--normalize").stdout.splitlines()
    if kind == "npy":
        rows = np.load(out)
        assert rows.dtype == want.dtype
    elif kind == "parquet":
        column = pyarrow.parquet.read_table(out)["embedding"]
        assert str(column.type.value_type) == str(want.dtype)
        rows = np.array(column.to_pylist())
    else:
        lines = out.read_text("utf-8").splitlines()[1:]
        assert lines == printed
        rows = np.array([json.loads(line)["embedding"] for line in lines])
    np.testing.assert_array_equal(rows, [json.loads(line)["embedding"] for line in printed])
    assert (rows == want).mean() > 0.97
    with pytest.raises(DataError, match=precision):
        list(read_vectors(out))


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_codes_without_their_sidecar_are_not_taken_for_vectors(tmp_path: Path, kind: Any) -> None:
    out = tmp_path / "codes.npy"
    np.save(out, np.ones((2, 3), kind))
    with pytest.raises(DataError, match=np.dtype(kind).name):
        list(read_vectors(out))
    np.save(out, np.load(out).astype(np.float32))
    assert len(list(read_vectors(out))) == 1
