"""Test which files the vectors of a command replace, and that a link and its file have their metadata."""

import os
from pathlib import Path

import pytest

from support.cli import ok, refused
from whiten_runtime.files.vector_metadata import read_metadata


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
