"""Test what `whiten fit` and `refit` refuse, before they compute where they can; nothing is left."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from support.bundles import copy_bundle, edit_manifest, rewrite_file
from support.cli import invoke, ok, refused
from support.corpus import sentences
from support.vectors import write_word_vectors
from whiten import BundleError, WhiteningSpec, refit_bundle
from whiten_runtime.commands.console import whiten
from whiten_runtime.files.corpus import BUILTIN_CORPUS


@pytest.fixture
def _no_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError("nothing may be embedded")

    monkeypatch.setattr("whiten_export.fit.fit_corpus", fail)


@pytest.mark.usefixtures("_no_embedding")
def test_nothing_is_embedded_for_a_place_or_a_bundle_that_does_not_fit(golden: Path, tmp_path: Path) -> None:
    old, other = golden / "bundle-v1", copy_bundle(golden / "bundle-v1", tmp_path)
    edit_manifest(other, lambda manifest: manifest["source"].update(weights_sha256="0" * 64))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(f"Sentence number {number}." for number in range(40)))
    command = ("refit", old, "--corpus", corpus, "--out")
    place = f"'{corpus}' is not a directory, so '{corpus / 'new'}' cannot be written; choose another --out"
    assert place in refused(*command, corpus / "new")
    aligned = (*command, tmp_path / "new", "--align-to")
    assert "cannot be aligned to: it is of another model" in refused(*aligned, other)
    assert "dimensions, the new bundle of 2; give --dim" in refused(*aligned, old, "--dim", 2)
    assert "none' does not exist" in refused(*aligned, tmp_path / "none", code=1)
    assert not (tmp_path / "new").exists()


def test_a_path_is_never_a_name_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BundleError, match="bundle 'org/name' does not exist; make one with whiten-export, or check"):
        refit_bundle(Path("org/name"), "s.stats", WhiteningSpec(), "new")


@pytest.mark.parametrize("command", ["refit", "fit"])
def test_a_corpus_of_unknown_words_is_told(command: str, tiny_bundle: Path, tmp_path: Path) -> None:
    """Its vectors would differ in nothing but their lengths, and a whitening of them says nothing of other texts."""
    corpus, out = tmp_path / "corpus.txt", tmp_path / "out"
    corpus.write_text("\n".join(" ".join("ქართული" * (1 + number % 9)) for number in range(80)), "utf-8")
    result = invoke(whiten, command, tiny_bundle, "--corpus", corpus, "--out", out)
    assert "are unknown to the model's tokenizer" in result.stderr
    corpus.write_text("\n".join(sentences(80)), "utf-8")
    result = invoke(whiten, command, tiny_bundle, "--corpus", corpus, "--out", tmp_path / "again")
    assert "unknown to" not in result.stderr


@pytest.mark.slow
def test_errors_write_no_bundle(tiny_bundle: Path, make: Callable[..., Path], other_file: Path, tmp_path: Path) -> None:
    few, bad, vectors = tmp_path / "few.txt", tmp_path / "bad.stats", tmp_path / "vectors"
    few.write_text("a\nb\nc\n")
    bad.write_bytes(b"no")
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(200, 6)))
    ok("export", "x", "--from-vectors", tmp_path / "v.npy", "--out", vectors)
    stats, cls = tmp_path / "s.stats", tmp_path / "cls.stats"
    ok("fit", tiny_bundle, "--corpus", other_file, "-o", stats)
    ok("fit", make("--pooling", "cls"), "--corpus", other_file, "-o", cls)
    other = copy_bundle(tiny_bundle, tmp_path)
    edit_manifest(other, lambda manifest: manifest["source"].update(weights_sha256="0" * 64))
    out, corpus = ("--out", tmp_path / "new"), ("--corpus", other_file)
    fit, refit = ("fit", tiny_bundle), ("refit", tiny_bundle, *out)
    for arguments, code, message in (
        (refit, 2, "give either --corpus FILE or --stats FILE"),
        ((*refit, *corpus, "--stats", stats), 2, "give either"),
        ((*refit, "--stats", stats, "--column", "x"), 2, "are for --corpus"),
        ((*refit, "--stats", stats, "--max-sentences", "all"), 2, "are for --corpus"),
        ((*refit, "--corpus", BUILTIN_CORPUS, "--column", "x"), 2, "column 'x' was given without a corpus file"),
        ((*refit, "--stats", stats, "--stats", cls), 2, "is not of this bundle's model (network_sha256 '"),
        ((*refit, "--stats", tmp_path / "none"), 2, "does not exist; make it with whiten fit"),
        ((*refit, "--stats", bad), 1, "not a file of whiten fit"),
        ((*refit, "--corpus", few, "--whitening", "pca"), 2, "3 sentences cannot whiten 32 dimensions"),
        ((*refit, "--corpus", tmp_path / "absent.txt"), 2, "does not exist"),
        ((*refit, "--stats", stats, "--whitening", "zca", "--dim", 3), 2, "not ordered by variance"),
        ((*refit, "--stats", stats, "--dim", 99), 2, "wanted 1 to 32"),
        (("refit", tiny_bundle, "--stats", stats, "--out", tiny_bundle), 2, "exists; replace it with --force"),
        (("refit", tmp_path, "--stats", stats, *out), 1, "is not a whiten bundle"),
        (("refit", other, "--stats", stats, *out), 2, "weights_sha256"),
        (("refit", vectors, "--stats", stats, *out), 2, "takes vectors, not texts; fit it anew with"),
        (("refit", vectors, *corpus, *out), 2, "takes vectors, not texts; fit it anew with"),
        ((*fit, "-o", stats), 2, "--corpus is missing"),
        ((*fit, *corpus, "-o", tmp_path), 2, "is a directory; name a file"),
        ((*fit, *corpus, "-o", tmp_path / "no" / "s"), 2, "is not a directory; create it"),
    ):
        assert message in refused(*arguments, code=code), arguments
        assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: np.roll(rows, 1, axis=0), "misses its gate"),
        (lambda rows: rows[:, :7], "texts and vectors of shapes"),
    ],
)
def test_probes_of_other_vectors_are_refused(
    tiny_bundle: Path, other_file: Path, tmp_path: Path, change: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    copy = copy_bundle(tiny_bundle, tmp_path)
    probes = load_file(copy / "probes.safetensors")
    probes["unwhitened"] = np.ascontiguousarray(change(probes["unwhitened"]))
    rewrite_file(copy, "probes.safetensors", save(probes))
    assert message in refused("refit", copy, "--corpus", other_file, "--out", tmp_path / "new", code=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


@pytest.mark.slow
def test_an_estimator_that_sif_cannot_have_is_refused(tmp_path: Path) -> None:
    write_word_vectors(tmp_path / "words.txt", sentences(400), 6)
    sif = ("export", tmp_path / "words.txt", "--pooling", "sif")
    assert "fourth moment" in refused(*sif, "--shrinkage", "ledoit-wolf")
