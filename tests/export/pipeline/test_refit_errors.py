"""Test what `whiten fit`, `merge` and `refit` refuse; nothing is written then."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from support.bundles import copy_bundle, edit_manifest, rewrite_file
from support.cli import invoke as run
from support.cli import ok
from support.corpus import sentences
from support.vectors import write_word_vectors
from whiten import BundleError
from whiten_export.commands.export import export
from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.parity import read_probes
from whiten_runtime.commands.main import whiten

pytestmark = pytest.mark.slow


def test_bundle_that_fails_the_parity_gate_is_not_written(tiny_bundle: Path, other_file: Path, tmp_path: Path) -> None:

    copy = copy_bundle(tiny_bundle, tmp_path)
    probes = load_file(copy / "probes.safetensors")
    probes["unwhitened"] = np.roll(probes["unwhitened"], 1, axis=0)
    rewrite_file(copy, "probes.safetensors", save(probes))
    result = run(whiten, "refit", copy, "--corpus", other_file, "--out", tmp_path / "new")
    assert (result.exit_code, "misses its gate" in result.stderr) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


def test_errors_write_no_bundle(tiny_bundle: Path, make: Callable[..., Path], other_file: Path, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("a\nb\nc\n")
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    stats, cls = tmp_path / "s.safetensors", tmp_path / "cls.safetensors"
    ok("fit", tiny_bundle, "--corpus", other_file, "-o", stats)
    ok("fit", make("--pooling", "cls"), "--corpus", other_file, "-o", cls)
    out = ("--out", tmp_path / "new")
    for arguments, code, message in (
        (("refit", tiny_bundle, *out), 2, "give either --corpus FILE or --stats FILE"),
        (("refit", tiny_bundle, "--corpus", other_file, "--stats", stats, *out), 2, "give either"),
        (("refit", tiny_bundle, "--stats", stats, "--column", "x", *out), 2, "are for --corpus"),
        (("refit", tiny_bundle, "--stats", cls, *out), 2, "is not of this bundle's model (pooling 'cls' and 'mean')"),
        (("refit", tiny_bundle, "--stats", tmp_path / "none", *out), 2, "does not exist; make it with whiten fit"),
        (("refit", tiny_bundle, "--stats", tmp_path / "bad.safetensors", *out), 1, "not a file of whiten fit"),
        (
            ("refit", tiny_bundle, "--corpus", tmp_path / "few.txt", "--whitening", "pca", *out),
            2,
            "3 sentences cannot whiten 32 dimensions",
        ),
        (("refit", tiny_bundle, "--corpus", tmp_path / "absent.txt", *out), 2, "does not exist"),
        (
            ("refit", tiny_bundle, "--stats", stats, "--whitening", "zca", "--dim", 3, *out),
            2,
            "not ordered by variance",
        ),
        (("refit", tiny_bundle, "--stats", stats, "--dim", 99, *out), 2, "wanted 1 to 32"),
        (("refit", tiny_bundle, "--stats", stats, "--out", tiny_bundle), 2, "exists; replace it with --force"),
        (("refit", tmp_path, "--stats", stats, *out), 1, "is not a whiten bundle"),
        (("fit", tiny_bundle, "-o", stats), 2, "--corpus is missing"),
        (("fit", tiny_bundle, "--corpus", other_file, "-o", tmp_path), 2, "is a directory; name a file"),
        (("fit", tiny_bundle, "--corpus", other_file, "-o", tmp_path / "no" / "s"), 2, "is not a directory; create it"),
        (("merge", stats, cls, "-o", tmp_path / "m"), 2, "different models or layers (pooling 'mean' and 'cls')"),
    ):
        result = run(whiten, *arguments)
        assert result.exit_code == code, (arguments, result.stderr)
        assert message in result.stderr, (arguments, result.stderr)
        assert not (tmp_path / "new").exists()


def test_statistics_of_other_weights_are_refused(tiny_bundle: Path, other_file: Path, tmp_path: Path) -> None:
    ok("fit", tiny_bundle, "--corpus", other_file, "-o", tmp_path / "s.safetensors")
    copy = copy_bundle(tiny_bundle, tmp_path)
    edit_manifest(copy, lambda manifest: manifest["source"].update(weights_sha256="0" * 64))
    result = run(whiten, "refit", copy, "--stats", tmp_path / "s.safetensors", "--out", tmp_path / "b")
    assert (result.exit_code, "weights_sha256" in result.stderr) == (2, True)


def test_statistics_of_other_word_frequencies_are_refused(tmp_path: Path) -> None:
    texts = sentences(400)
    words = write_word_vectors(tmp_path / "words.txt", texts, 6)
    (tmp_path / "counts.txt").write_text("".join(f"{word} {n + 1}\n" for n, word in enumerate(words)), "utf-8")
    (tmp_path / "c.txt").write_text("\n".join(texts) + "\n", "utf-8")
    made = {"a": (), "b": ("--frequencies", tmp_path / "counts.txt"), "c": ("--max-words", 50)}
    for name, options in made.items():
        arguments = ("--pooling", "sif", "--corpus", tmp_path / "c.txt", *options, "--out", tmp_path / name)
        assert run(export, tmp_path / "words.txt", *arguments).exit_code == 0
        ok("fit", tmp_path / name, "--corpus", tmp_path / "c.txt", "-o", tmp_path / f"{name}.safetensors")
    for name in "bc":
        stats = [tmp_path / f"{part}.safetensors" for part in ("a", name)]
        refused = run(whiten, "merge", *stats, "-o", tmp_path / "m")
        assert (refused.exit_code, "are of different models" in refused.stderr) == (2, True)
    early = run(
        export, tmp_path / "words.txt", "--pooling", "sif", "--shrinkage", "ledoit-wolf", "--corpus", tmp_path / "c.txt"
    )
    assert (early.exit_code, "fourth moment" in early.stderr, "fitting" in early.stderr) == (2, True, False)


def test_probes_of_another_width_are_refused(tiny_bundle: Path, other_file: Path, tmp_path: Path) -> None:
    copy = copy_bundle(tiny_bundle, tmp_path)
    probes = load_file(copy / "probes.safetensors")
    probes["unwhitened"] = np.ascontiguousarray(probes["unwhitened"][:, :7])
    rewrite_file(copy, "probes.safetensors", save(probes))
    result = run(whiten, "refit", copy, "--corpus", other_file, "--out", tmp_path / "new")
    assert (result.exit_code, "texts and vectors of shapes" in result.stderr) == (1, True)
    with pytest.raises(BundleError, match="its probes are .* texts"):
        read_probes(open_bundle(copy))


def test_fit_and_refit_refuse_bundles_of_vectors(tmp_path: Path, other_file: Path) -> None:
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(200, 6)))
    assert run(export, "x", "--from-vectors", tmp_path / "v.npy", "--out", tmp_path / "b").exit_code == 0
    result = run(whiten, "refit", tmp_path / "b", "--corpus", other_file, "--out", tmp_path / "c")
    assert (result.exit_code, "--from-vectors" in result.stderr) == (2, True)
    result = run(whiten, "refit", tmp_path / "b", "--stats", tmp_path / "s", "--out", tmp_path / "c")
    assert (result.exit_code, "--from-vectors" in result.stderr) == (2, True)
