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
from whiten_runtime.files.vectors import VectorMetadata, read_metadata, read_vectors, writing_vectors


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


def test_old_metadata_beside_a_link_and_its_file_is_replaced(tiny_bundle: Path, tmp_path: Path) -> None:
    link, real = linked(tmp_path, "w.npy")
    ok("embed", tiny_bundle, "one", "two", "--out", real)
    ok("embed", tiny_bundle, "one", "--out", link, "--normalize", "--force")
    for path in (link, real):
        metadata = read_metadata(path)
        assert metadata is not None
        assert metadata.normalized
    assert f"{link}' exists" in refused("embed", tiny_bundle, "one", "--out", link)


SPACE = "0123456789abcdef"
CODES = {
    "int8": np.array([[-128, 0, 127], [1, 2, 3]], np.int8),
    "uint8": np.array([[0, 128, 255], [1, 2, 3]], np.uint8),
    "binary": np.array([[-128, 127], [1, 2]], np.int8),
    "ubinary": np.array([[0, 255], [1, 2]], np.uint8),
}


@pytest.mark.parametrize("precision", CODES)
@pytest.mark.parametrize("kind", ["npy", "parquet", "jsonl"])
def test_codes_keep_their_type_and_are_not_taken_for_vectors(tmp_path: Path, kind: str, precision: Any) -> None:
    codes = CODES[precision]
    dimension = 3 if precision.endswith("int8") else 11
    metadata = VectorMetadata(space=SPACE, bundle="b", dimension=dimension, normalized=False, precision=precision)
    file = tmp_path / f"v.{kind}"
    with writing_vectors(file, metadata) as writer:
        writer.write(["0", "1"], codes)
    found = read_metadata(file)
    assert found is not None
    assert (found.precision, found.dimension, found.columns, found.dtype) == (
        precision, dimension, codes.shape[1], codes.dtype,
    )  # fmt: skip
    if kind == "npy":
        rows = np.load(file)
        assert rows.dtype == codes.dtype
    elif kind == "parquet":
        column = pyarrow.parquet.read_table(file)["embedding"]
        assert str(column.type.value_type) == str(codes.dtype)
        rows = np.array(column.to_pylist())
    else:
        rows = np.array([json.loads(line)["embedding"] for line in file.read_text().splitlines()[1:]])
    np.testing.assert_array_equal(rows, codes)
    with pytest.raises(DataError, match=f"holds vectors of precision {precision}; wanted float32"):
        list(read_vectors(file))


@pytest.mark.parametrize("precision", CODES)
@pytest.mark.parametrize("kind", ["npy", "parquet", "jsonl"])
def test_embed_writes_codes(tiny_bundle: Path, tiny: Encoder, tmp_path: Path, kind: str, precision: Any) -> None:
    out, texts = tmp_path / f"v.{kind}", ["a text", "another", ""]
    result = ok("embed", tiny_bundle, *texts, "--out", out, "--vector-type", precision, "--normalize", "--json")
    assert json.loads(result.stdout)["precision"] == precision
    found = read_metadata(out)
    assert found is not None
    assert (found.precision, found.dimension, found.normalized) == (precision, 32, True)
    want = tiny.encode(texts, precision=precision, normalize_embeddings=True)
    if kind == "npy":
        assert (np.load(out) == want).mean() > 0.97
    with pytest.raises(DataError, match=f"precision {precision}; wanted float32"):
        list(read_vectors(out))
    printed = ok("embed", tiny_bundle, *texts, "--vector-type", precision, "--normalize").stdout
    lines = printed.splitlines()
    assert kind != "jsonl" or lines == out.read_text("utf-8").splitlines()[1:]
    assert (np.array([json.loads(line)["embedding"] for line in lines]) == want).mean() > 0.97


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_codes_without_their_sidecar_are_not_taken_for_vectors(tmp_path: Path, precision: str) -> None:
    out = tmp_path / "codes.npy"
    np.save(out, CODES[precision])
    with pytest.raises(DataError, match=r"codes.npy: holds u?int8, as codes .* and no codes.npy.json is beside it"):
        list(read_vectors(out))
    np.save(out, np.load(out).astype(np.float32))
    assert len(list(read_vectors(out))) == 1


def test_pickled_objects_are_refused_in_our_words(tmp_path: Path) -> None:
    for name, content in (("objects", np.array([{}, None])), ("text", None)):
        path = tmp_path / f"{name}.npy"
        if content is None:
            path.write_text("x")
        else:
            np.save(path, content, allow_pickle=True)
        with pytest.raises(DataError, match=r"not a \.npy file with numbers: it holds Python") as caught:
            list(read_vectors(path, None))
        assert "allow_pickle" not in str(caught.value)


@pytest.mark.parametrize("shape", ["(99999999999999999999, 2)", "(True, 2)", "(" * 50])
def test_a_damaged_header_of_npy_is_refused_in_one_line(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "a.npy"
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64))
    with pytest.raises(DataError, match=r"a\.npy: not a \.npy file \(") as caught:
        list(read_vectors(path))
    assert "\n" not in str(caught.value)
