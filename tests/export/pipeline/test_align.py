"""Test `--align-to`: a new whitening turned onto the one of an old bundle."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.cli import ok, refused
from support.corpus import sentences
from whiten import Encoder, UsageError

CUT = "truncate_dim is 8, but .* space [0-9a-f]{16}, which mixes .* with pca or pca-cor and without --align-to"


def encoded(bundle: Path) -> np.ndarray:
    with Encoder(bundle) as encoder:
        return encoder.encode(sentences(1400)[1000:], normalize_embeddings=True)


def self_recall(old: np.ndarray, new: np.ndarray) -> float:
    return float((np.argmax(new @ old.T, axis=1) == np.arange(len(old))).mean())


def test_refit_aligned_with_the_old_bundle_finds_its_stored_vectors(
    make: Callable[..., Path], other_file: Path, tmp_path: Path
) -> None:
    old = make()
    plain = ok("refit", old, "--corpus", other_file, "--whitening", "pca", "--out", tmp_path / "plain")
    assert f"stored vectors of {old} do not fit" in plain.stderr
    options = ("--corpus", other_file, "--whitening", "pca", "--align-to", old, "--out", tmp_path / "aligned", "--json")
    aligned = ok("refit", old, *options)
    stored, plain_vectors, aligned_vectors = map(encoded, (old, tmp_path / "plain", tmp_path / "aligned"))
    np.testing.assert_allclose(plain_vectors @ plain_vectors.T, aligned_vectors @ aligned_vectors.T, atol=1e-3)
    assert self_recall(stored, aligned_vectors) > self_recall(stored, plain_vectors) + 0.3
    manifest = json.loads(aligned.stdout)["manifest"]
    record = manifest["whitening"]["alignment"]
    assert record["space"] == Encoder(old).space != manifest["space"]
    assert f"{100 * record['self_recall']:.1f} % find themselves" in aligned.stderr
    cosines = (stored * aligned_vectors).sum(axis=1)
    assert record["median_cosine"] == pytest.approx(np.median(cosines), abs=0.05)
    assert f"aligned with  space {record['space']}" in ok("info", tmp_path / "aligned").stdout
    with Encoder(tmp_path / "aligned") as encoder, pytest.raises(UsageError, match=CUT):
        encoder.encode(["a"], truncate_dim=8)
    ok("verify", tmp_path / "aligned")


def test_alignment_to_the_own_map_changes_nothing(make: Callable[..., Path], corpus_file: Path, tmp_path: Path) -> None:
    old = make("--dim", 12)
    options = ("--corpus", corpus_file, "--whitening", "pca", "--align-to", old, "--out", tmp_path / "same", "--json")
    manifest = json.loads(ok("refit", old, *options).stdout)["manifest"]
    assert manifest["dimension"] == 12  # taken from the old bundle
    assert manifest["whitening"]["alignment"]["median_cosine"] == pytest.approx(1, abs=1e-6)
    assert manifest["whitening"]["alignment"]["self_recall"] == 1
    np.testing.assert_allclose(encoded(old), encoded(tmp_path / "same"), atol=1e-3)


@pytest.mark.parametrize("method", ["pca", "zca", pytest.param("zca-cor", marks=pytest.mark.slow), "cholesky"])
def test_every_method_is_aligned_by_an_export_as_by_a_refit(
    make: Callable[..., Path], checkpoint: Callable[..., Path], other_file: Path, tmp_path: Path, method: str
) -> None:
    old = make("--whitening", method)
    options = ("--whitening", method, "--corpus", other_file, "--align-to", old)
    ok("export", checkpoint("bert"), "--layers", "1,4", *options, "--out", tmp_path / "new")
    ok("refit", old, *options, "--out", tmp_path / "refitted")
    np.testing.assert_allclose(encoded(tmp_path / "new"), encoded(tmp_path / "refitted"), atol=1e-3)
    if method != "pca":
        dim = refused("export", checkpoint("bert"), "--layers", "1,4", *options, "--dim", 8, "--out", tmp_path / "no")
        assert f"dim 8 cannot be kept of {method}" in dim


def test_pairs_decide_on_the_whitening_and_not_on_the_layers_if_there_is_a_bundle_to_align_to(
    make: Callable[..., Path], checkpoint: Callable[..., Path], other_file: Path, dev_file: Path, tmp_path: Path
) -> None:
    old = make()
    arguments = (checkpoint("bert"), "--layers", "1,4", "--corpus", other_file, "--dev", dev_file)
    result = ok("export", *arguments, "--align-to", old, "--out", tmp_path / "new", "--json")
    manifest = json.loads(result.stdout)["manifest"]
    assert manifest["layer_weights"] is None
    texts = other_file.read_text("utf-8").splitlines()
    with Encoder(old) as before, Encoder(tmp_path / "new") as after:
        stored, found = (encoder.encode(texts, normalize_embeddings=True) for encoder in (before, after))
    expected = np.median((stored * found).sum(axis=1))
    assert manifest["whitening"]["alignment"]["median_cosine"] == pytest.approx(expected, abs=1e-3)


def test_what_cannot_be_aligned_is_refused_and_nothing_is_written(
    make: Callable[..., Path], checkpoint: Callable[..., Path], other_file: Path, tmp_path: Path
) -> None:
    old, unwhitened, cls = make(), make("--whitening", "none"), make("--pooling", "cls")
    (tmp_path / "few.txt").write_text("\n".join(sentences(40)) + "\n", "utf-8")
    refit = ("refit", old, "--corpus", other_file, "--whitening", "auto", "--out", tmp_path / "new")
    export = ("export", checkpoint("bert"), "--align-to", old, "--out", tmp_path / "new")
    for arguments, code, message in (
        ((*refit, "--align-to", cls), 2, "of another model or of other layers"),
        ((*refit, "--align-to", unwhitened), 1, "has no whitening"),
        ((*refit, "--dim", 8, "--align-to", old), 2, "give --dim 32"),
        ((*refit, "--align-to", tmp_path / "absent"), 1, "does not exist"),
        ((*refit[:3], tmp_path / "few.txt", *refit[4:], "--align-to", old), 2, "40 sentences cannot align 32"),
        ((*export, "--layers", "0", "--corpus", other_file), 2, "other layers"),
        ((*export, "--whitening", "none"), 2, "there is no whitening"),
    ):
        assert message in refused(*arguments, code=code)
        assert not (tmp_path / "new").exists()
