"""Test `whiten drift` on files of vectors: it takes those of the bundle's own space, and no others."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from support.bundles import change_bundle, copy_bundle, edit_manifest
from support.cli import invoke, ok
from support.corpus import sentences
from whiten import Encoder
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.space import space_of
from whiten_runtime.commands.console import whiten
from whiten_runtime.files.vectors import read_metadata, sidecar_of

run = partial(invoke, whiten)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(sentences(400)) + "\n")
    return path


def refused(bundle: Path, file: Path) -> str:
    """Return the line with which a file is refused."""
    result = run("drift", bundle, "--input", file, "--json")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    return result.stderr


def test_vectors_of_the_own_space_drift_like_their_texts(tiny_bundle: Path, texts: Path, tmp_path: Path) -> None:
    ok("embed", tiny_bundle, "--input", texts, "--out", tmp_path / "v.npy")
    from_vectors, from_texts = (
        json.loads(ok("drift", tiny_bundle, "--input", file, "--json").stdout) for file in (tmp_path / "v.npy", texts)
    )
    assert from_vectors["n"] == from_texts["n"] == 400
    assert from_vectors["verdict"] == from_texts["verdict"] == "close"
    assert from_vectors["spectrum_ratio"] == pytest.approx(from_texts["spectrum_ratio"], rel=1e-4)
    assert from_vectors["spectrum_ratio"] == pytest.approx(1, abs=0.01)


def test_the_exit_code_is_that_of_the_verdict(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("\n".join(f"{n} {n + 1}" for n in range(300)) + "\n\n")
    result = run("drift", tiny_bundle, "--input", tmp_path / "other.txt", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["verdict"], found["n"]) == (3, "drifting", 300)
    assert "drifting" in result.stderr
    (tmp_path / "few.txt").write_text("a\nb\n")
    assert "too few to tell" in refused(tiny_bundle, tmp_path / "few.txt")


def test_a_bundle_that_normalises_is_measured_before_its_whitening(golden: Path, texts: Path, tmp_path: Path) -> None:
    found = json.loads(ok("drift", golden / "bundle-v1-int8", "--input", texts, "--json").stdout)
    assert (found["n"], found["verdict"]) == (400, "close")
    older = copy_bundle(golden / "bundle-v1", tmp_path, normalize=True)
    result = run("drift", older, "--input", texts)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "vectors before whitening, as a version before 0.5 wrote it; export it again" in result.stderr


def test_vectors_of_another_space_are_refused(tiny: Encoder, tiny_bundle: Path, texts: Path, tmp_path: Path) -> None:
    other = copy_bundle(tiny_bundle, tmp_path)
    edit_manifest(other, lambda m: m["source"].update(weights_sha256="f" * 64))
    change_bundle(other)
    ok("embed", other, "--input", texts, "--out", tmp_path / "v.npy")
    message = refused(tiny_bundle, tmp_path / "v.npy")
    found = space_of(read_manifest(other))
    assert found != tiny.space
    assert f"in space {found}" in message
    assert tiny.space in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--normalize",), "divided by their norms"),
        (("--truncate-dim", 8), "the first 8 of 32 coordinates"),
        (None, "v.npy.json, which would say so, is missing"),  # the file that states the space
    ],
)
def test_vectors_that_tell_too_little_are_refused(
    tiny_bundle: Path, texts: Path, tmp_path: Path, options: tuple[object, ...] | None, message: str
) -> None:
    assert "does not exist" in refused(tiny_bundle, tmp_path / "v.npy")
    ok("embed", tiny_bundle, "--input", texts, "--out", tmp_path / "v.npy", *(options or ()))
    if options is None:
        sidecar_of(tmp_path / "v.npy").unlink()
    assert message in refused(tiny_bundle, tmp_path / "v.npy")


def test_bundles_of_vectors_take_what_they_whiten_and_what_they_gave(golden: Path, tmp_path: Path) -> None:
    bundle = golden / "bundle-v1-vectors"
    stored = json.loads((golden / "vectors.json").read_text("utf-8"))
    rows = np.tile(np.asarray(stored["rows"], np.float32), (40, 1))
    np.save(tmp_path / "in.npy", rows)
    ok("transform", bundle, "--input", tmp_path / "in.npy", "--out", tmp_path / "out.npy")
    metadata = read_metadata(tmp_path / "out.npy")
    assert metadata is not None
    found = []
    for file in ("in.npy", "out.npy"):
        result = run("drift", bundle, "--input", tmp_path / file, "--json")
        found.append(json.loads(result.stdout))
    assert found[0]["n"] == len(rows)
    assert found[0]["spectrum_ratio"] == pytest.approx(found[1]["spectrum_ratio"], rel=1e-3)
