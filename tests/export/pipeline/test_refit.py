"""Test `whiten fit`, `merge`, `refit`: another whitening without PyTorch, on bundles of every kind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from safetensors.numpy import load_file, save

from support.bundles import copy_bundle, edit_manifest, rewrite_file
from support.cli import invoke as run
from support.corpus import sentences
from support.sizes import WIDTH
from whiten_export.commands.export import export
from whiten_export.corpus.statistics import load_statistics
from whiten_export.pipeline import refit
from whiten_export.pipeline.refit import fit_bundle
from whiten_runtime import Encoder
from whiten_runtime.commands.main import whiten
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.inference.batching import WINDOW


def ok(*arguments: object) -> Result:
    result = run(whiten, *arguments)
    assert result.exit_code == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def other_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write sentences that the bundles were not fitted on."""
    path = tmp_path_factory.mktemp("corpus") / "other.txt"
    path.write_text("\n".join(sentences(1200)[600:]) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def make(
    checkpoint: Callable[[str], Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return a function that exports the small BERT with given options."""
    made: dict[tuple[object, ...], Path] = {}

    def get(*options: object) -> Path:
        if options not in made:
            out = tmp_path_factory.mktemp("bundles") / "b"
            corpus = [] if "none" in options else ["--corpus", corpus_file]
            result = run(export, checkpoint("bert"), "--layers", "1,4", *corpus, *options, "--out", out)
            assert result.exit_code == 0, result.stderr
            made[options] = out
        return made[options]

    return get


def test_refit_on_the_same_corpus_equals_the_export(tiny_bundle: Path, corpus_file: Path, tmp_path: Path) -> None:
    ok("refit", tiny_bundle, "--corpus", corpus_file, "--out", tmp_path / "again")
    before, after = (load_file(root / "whitening.safetensors") for root in (tiny_bundle, tmp_path / "again"))
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-6, atol=1e-6 * np.abs(array).max())
    with Encoder(tiny_bundle) as old, Encoder(tmp_path / "again") as new:
        want = old.encode(sentences(50))
        np.testing.assert_allclose(new.encode(sentences(50)), want, atol=1e-6 * np.abs(want).max())
        assert new.manifest.whitening == old.manifest.whitening


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--whitening", "none"),
        ("--whitening", "none", "--normalize"),
        ("--normalize", "--dim", 8),
        ("--outputs", "both"),
        ("--precision", "int8", "--dim", 8),
        ("--precision", "fp16"),
        ("--precision", "int8", "--whitening", "none"),
    ],
    ids=lambda options: "-".join(str(option).lstrip("-") for option in options) or "plain",
)
@pytest.mark.parametrize("method", ["pca", "zca"])
def test_refit_whitens_bundles_of_every_kind(
    make: Callable[..., Path], other_file: Path, tmp_path: Path, options: tuple[object, ...], method: str
) -> None:
    bundle = make(*options)
    kept = ("--dim", 12, "--shrinkage", "oas") if method == "pca" else ("--beta", 0.5)
    result = ok(
        "refit", bundle, "--corpus", other_file, "--whitening", method, *kept, "--out", tmp_path / "new", "--json"
    )
    manifest = json.loads(result.stdout)["manifest"]
    assert manifest["whitening"]["corpus"][0]["name"] == "other.txt"
    assert manifest["whitening"]["method"] == method
    fitted = load_file(tmp_path / "new" / "whitening.safetensors")
    texts = sentences(1200)[600:]
    with Encoder(tmp_path / "new") as new, Encoder(bundle) as old:
        got = new.encode(texts).astype(np.float64)
        assert new.dimension == (12 if method == "pca" else WIDTH)
        # The map is fitted on the vectors that the bundle's own graph gives before whitening.
        statistics = fit_bundle(bundle, Corpus((str(other_file),), None, None))
        raw = statistics.sample.vectors[np.argsort(statistics.sample.keys)].astype(np.float64)
        np.testing.assert_allclose(fitted["mean"], raw.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(fitted["covariance"], np.cov(raw.T), atol=1e-6)
        white = (raw - fitted["mean"]) @ fitted["W"]
        if new.manifest.normalize:
            white /= np.linalg.norm(white, axis=1, keepdims=True)
        order = [np.abs(white - vector).max(axis=1).argmin() for vector in got[:40]]
        np.testing.assert_allclose(got[:40], white[order], atol=2e-4 * np.abs(white).max())
        assert new.verify().vectors == old.verify().vectors
        assert new.manifest.files["tokenizer.json"] == old.manifest.files["tokenizer.json"]
    pooling = json.loads((tmp_path / "new" / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == new.dimension
    ok("verify", tmp_path / "new")


def test_refit_changes_only_the_weights_of_the_whitening(
    make: Callable[..., Path], other_file: Path, tmp_path: Path
) -> None:
    import onnx

    bundle = make("--precision", "int8", "--dim", 8)
    ok("refit", bundle, "--corpus", other_file, "--dim", 16, "--out", tmp_path / "new")
    old, new = (
        {
            tensor.name: onnx.numpy_helper.to_array(tensor)
            for tensor in onnx.load(root / "onnx/model.onnx").graph.initializer
        }
        for root in (bundle, tmp_path / "new")
    )
    assert old.keys() == new.keys()
    for name, array in old.items():
        if name.startswith("whitening."):
            assert new[name].shape != array.shape or not np.array_equal(new[name], array)
        else:
            np.testing.assert_array_equal(new[name], array, err_msg=name)


def test_isotropy_is_measured_before_and_after_whitening(tiny_bundle: Path, corpus_file: Path, tmp_path: Path) -> None:
    ok("refit", tiny_bundle, "--corpus", corpus_file, "--beta", 0, "--out", tmp_path / "centred")
    with Encoder(tiny_bundle) as full, Encoder(tmp_path / "centred") as centred:
        whitening, rotated = full.manifest.whitening, centred.manifest.whitening
        assert whitening is not None
        assert rotated is not None
        before, after, only = whitening.isotropy_before, whitening.isotropy_after, rotated.isotropy_after
        assert before is not None
        assert after is not None
        assert only is not None
        units = full.encode(sentences(400), normalize_embeddings=True).astype(np.float64)
    cosines = (units @ units.T)[np.triu_indices(400, 1)]
    assert after.average_cosine == pytest.approx(cosines.mean(), abs=1e-4)
    assert before.average_cosine > 0.05 > abs(after.average_cosine)
    assert before.iso_score < after.iso_score
    assert before.iso_score == pytest.approx(only.iso_score, rel=1e-4)  # a rotation changes no spectrum
    assert after.partition_score > max(before.partition_score, 0.8)
    assert "isotropy    IsoScore" in ok("info", tiny_bundle).stdout


def test_refit_keeps_external_weights(
    checkpoint: Callable[..., Path], corpus_file: Path, other_file: Path, tmp_path: Path
) -> None:
    result = run(export, checkpoint("bert", 4), "--corpus", corpus_file, "--out", tmp_path / "old")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "old/onnx/model.onnx_data").is_file()
    ok("refit", tmp_path / "old", "--corpus", other_file, "--out", tmp_path / "new")
    assert (tmp_path / "new/onnx/model.onnx_data").is_file()
    ok("verify", tmp_path / "new")
    ok("drift", tmp_path / "new", "--input", other_file)


def test_merged_statistics_equal_those_of_the_whole_corpus(tiny_bundle: Path, tmp_path: Path) -> None:
    texts = sentences(900)
    for name, part in {"a": texts[:500], "b": texts[500:], "all": texts}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(part) + "\n", "utf-8")
        ok("fit", tiny_bundle, "--corpus", tmp_path / f"{name}.txt", "-o", tmp_path / f"{name}.safetensors")
    parts = [tmp_path / f"{name}.safetensors" for name in "ab"]
    report = json.loads(ok("merge", *parts, "-o", tmp_path / "ab.safetensors", "--json").stdout)
    assert [record["sentences"] for record in report["corpus"]] == [500, 400]
    merged, whole = (load_statistics(tmp_path / f"{name}.safetensors")[0] for name in ("ab", "all"))
    scale = np.abs(whole.moments.scatter).max()  # batches differ, and so does rounding in float32
    np.testing.assert_allclose(merged.moments.scatter, whole.moments.scatter, atol=1e-6 * scale)
    assert len(merged.sample.keys) == len(whole.sample.keys) == 900
    for name in ("ab", "all"):
        ok("refit", tiny_bundle, "--stats", tmp_path / f"{name}.safetensors", "--out", tmp_path / name)
    with Encoder(tmp_path / "ab") as first, Encoder(tmp_path / "all") as second:
        np.testing.assert_allclose(first.encode(texts[:20]), second.encode(texts[:20]), atol=1e-3)
        assert [record.name for record in first.manifest.whitening.corpus] == ["a.txt", "b.txt"]  # type: ignore[union-attr]


def test_statistics_of_the_float32_bundle_whiten_the_int8_bundle(
    make: Callable[..., Path], other_file: Path, tmp_path: Path
) -> None:
    full, small, stats = (
        make("--whitening", "none"),
        make("--precision", "int8", "--dim", 8),
        tmp_path / "s.safetensors",
    )
    ok("fit", full, "--corpus", other_file, "-o", stats)
    assert "warning" not in ok("refit", full, "--stats", stats, "--dim", 8, "--out", tmp_path / "full").stderr
    result = ok("refit", small, "--stats", stats, "--dim", 8, "--out", tmp_path / "small")
    assert "the statistics are of fp32 vectors" in result.stderr
    weights = [load_file(tmp_path / name / "whitening.safetensors")["W"] for name in ("full", "small")]
    np.testing.assert_array_equal(*weights)
    with Encoder(tmp_path / "full") as first, Encoder(tmp_path / "small") as second:
        assert second.manifest.precision == "int8"
        both = [encoder.encode(sentences(100), normalize_embeddings=True) for encoder in (first, second)]
        assert (both[0] * both[1]).sum(axis=1).mean() > 0.99


_KILLED_AFTER_A_STATE = """
import os, signal, sys
from pathlib import Path
from whiten_export.pipeline import refit
from whiten_runtime.files.corpus import Corpus
save = refit.save_statistics
def save_and_die(*arguments):
    save(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
refit.save_statistics = save_and_die
bundle, corpus, out = sys.argv[1:]
refit.fit_bundle(Path(bundle), Corpus((corpus,), None, None), Path(out), seconds_between=0)
"""


def test_interrupted_fit_resumes_with_the_same_bits(tiny_bundle: Path, tmp_path: Path) -> None:
    """Check the state after an interruption, and that the resumed fit has the bits of an uninterrupted one."""
    texts = [f"{text} {number}" for number in range(30) for text in sentences(600)]
    assert len(texts) > 4 * WINDOW
    (tmp_path / "c.txt").write_text("\n".join(texts) + "\n", "utf-8")
    command = [sys.executable, "-c", _KILLED_AFTER_A_STATE, str(tiny_bundle), "c.txt", "s.safetensors"]
    done = subprocess.run(command, cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "s.safetensors").exists()
    _, _, progress = load_statistics(tmp_path / "s.safetensors.partial")
    assert progress is not None
    assert 0 < progress.sentences < len(texts)
    refused = run(whiten, "refit", tiny_bundle, "--stats", tmp_path / "s.safetensors.partial", "--out", tmp_path / "b")
    assert (refused.exit_code, "was interrupted" in refused.stderr) == (2, True)
    result = ok("fit", tiny_bundle, "--corpus", tmp_path / "c.txt", "-o", tmp_path / "s.safetensors")
    assert f"going on after {progress.sentences:,} sentences" in result.stderr
    assert not (tmp_path / "s.safetensors.partial").exists()
    ok("fit", tiny_bundle, "--corpus", tmp_path / "c.txt", "-o", tmp_path / "t.safetensors")
    assert (tmp_path / "s.safetensors").read_bytes() == (tmp_path / "t.safetensors").read_bytes()


def test_fit_does_not_resume_with_another_corpus_or_bundle(
    tiny_bundle: Path, make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, out = tmp_path / "c.txt", tmp_path / "s.safetensors"
    corpus.write_text("\n".join(sentences(600)) + "\n", "utf-8")
    ok("fit", tiny_bundle, "--corpus", corpus, "-o", out)
    monkeypatch.setattr(refit, "save_statistics", _keep_only_partial(refit.save_statistics))
    with pytest.raises(KeyboardInterrupt):
        fit_bundle(tiny_bundle, Corpus((str(corpus),), None, None), out, seconds_between=-1)
    monkeypatch.undo()
    assert (tmp_path / "s.safetensors.partial").exists()
    corpus.write_text("\n".join(sentences(601)[1:]) + "\n", "utf-8")
    refused = run(whiten, "fit", tiny_bundle, "--corpus", corpus, "-o", out)
    assert (refused.exit_code, "the corpus is not the one" in refused.stderr) == (2, True)
    other = run(whiten, "fit", make("--pooling", "cls"), "--corpus", corpus, "-o", out)
    assert (other.exit_code, "is of another fit" in other.stderr) == (2, True)
    ok("fit", tiny_bundle, "--corpus", corpus, "-o", out, "--restart")


def _keep_only_partial(save: Callable[..., None]) -> Callable[..., None]:
    def stop(path: Path, *arguments: object) -> None:
        if path.suffix != ".partial":
            raise KeyboardInterrupt
        save(path, *arguments)

    return stop


_WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('torch', 'transformers', 'huggingface_hub', 'onnxscript'):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
from whiten_runtime.commands.main import main
main()
"""


def test_fit_merge_refit_and_drift_run_without_torch(tiny_bundle: Path, other_file: Path, tmp_path: Path) -> None:
    for arguments in (
        ("fit", tiny_bundle, "--corpus", other_file, "-o", "s.safetensors"),
        ("merge", "s.safetensors", "s.safetensors", "-o", "m.safetensors"),
        ("refit", tiny_bundle, "--stats", "m.safetensors", "--out", "b"),
        ("refit", tiny_bundle, "--corpus", other_file, "--out", "c"),
        ("drift", "b", "--input", other_file),
    ):
        command = [sys.executable, "-c", _WITHOUT_TORCH, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ)
        assert done.returncode == 0, (arguments, done.stderr)


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
        (("refit", tiny_bundle, "--corpus", tmp_path / "few.txt", *out), 2, "3 sentences cannot whiten 32 dimensions"),
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


def write_word_vectors(path: Path, texts: list[str], width: int) -> list[str]:
    """Write a random vector for each word of the texts, and return the words."""
    words = sorted({word for text in texts for word in text.lower().split()})
    generator = np.random.default_rng(0)
    rows = (f"{word} {' '.join(f'{x:.4f}' for x in generator.normal(size=width))}" for word in words)
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return words


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


def test_interrupted_fit_saves_its_progress(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{text} {number}" for number in range(12) for text in sentences(600)]
    (tmp_path / "c.txt").write_text("\n".join(texts) + "\n", "utf-8")
    real = refit.fit_corpus

    def interrupted(*arguments: object) -> object:
        *others, keep = arguments

        def stop(*state: object) -> None:
            keep(*state)  # type: ignore[operator]
            raise KeyboardInterrupt

        return real(*others, stop)  # type: ignore[arg-type]

    monkeypatch.setattr(refit, "fit_corpus", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_bundle(tiny_bundle, Corpus((str(tmp_path / "c.txt"),), None, None), tmp_path / "s.safetensors")
    _, _, progress = load_statistics(tmp_path / "s.safetensors.partial")
    assert progress is not None
    assert progress.sentences == WINDOW
    monkeypatch.undo()
    assert (
        "going on after 4,096"
        in ok("fit", tiny_bundle, "--corpus", tmp_path / "c.txt", "-o", tmp_path / "s.safetensors").stderr
    )


def test_probes_of_another_width_are_refused(tiny_bundle: Path, other_file: Path, tmp_path: Path) -> None:

    copy = copy_bundle(tiny_bundle, tmp_path)
    probes = load_file(copy / "probes.safetensors")
    probes["unwhitened"] = np.ascontiguousarray(probes["unwhitened"][:, :7])
    rewrite_file(copy, "probes.safetensors", save(probes))
    result = run(whiten, "refit", copy, "--corpus", other_file, "--out", tmp_path / "new")
    assert (result.exit_code, "its probes hold vectors" in result.stderr) == (1, True)


def test_fit_and_refit_refuse_bundles_of_vectors(tmp_path: Path, other_file: Path) -> None:
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(200, 6)))
    assert run(export, "x", "--from-vectors", tmp_path / "v.npy", "--out", tmp_path / "b").exit_code == 0
    result = run(whiten, "refit", tmp_path / "b", "--corpus", other_file, "--out", tmp_path / "c")
    assert (result.exit_code, "--from-vectors" in result.stderr) == (2, True)
    result = run(whiten, "refit", tmp_path / "b", "--stats", tmp_path / "s", "--out", tmp_path / "c")
    assert (result.exit_code, "--from-vectors" in result.stderr) == (2, True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_error_for_a_nonfinite_vector_names_its_sentence(
    checkpoint: Callable[[str], Path], tmp_path: Path, value: float
) -> None:
    from transformers import AutoModel, AutoTokenizer

    source = checkpoint("bert")
    tokenizer, model = AutoTokenizer.from_pretrained(source), AutoModel.from_pretrained(source)
    texts = sentences(60)
    texts.insert(41, "please return 7 rows")
    rare = next(
        token
        for token in tokenizer(texts[41])["input_ids"]
        if not any(token in tokenizer(text)["input_ids"] for text in (texts[:41] + texts[42:]))
    )
    model.embeddings.word_embeddings.weight.data[rare] = value
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "c.txt").write_text("\n".join(texts) + "\n", "utf-8")
    result = run(export, tmp_path / "model", "--layers", "0", "--corpus", tmp_path / "c.txt", "--out", tmp_path / "b")
    assert result.exit_code == 1
    assert "sentence 42 of the corpus has a vector that is not finite: 'please return 7 rows'" in result.stderr
    assert not (tmp_path / "b").exists()


def test_refit_of_sif_word_vectors_equals_the_export(tmp_path: Path) -> None:
    texts = sentences(500)
    write_word_vectors(tmp_path / "words.txt", texts, 12)
    (tmp_path / "c.txt").write_text("\n".join(texts) + "\n", "utf-8")
    options = ("--pooling", "sif", "--corpus", tmp_path / "c.txt", "--out", tmp_path / "b")
    assert run(export, tmp_path / "words.txt", *options).exit_code == 0
    ok("refit", tmp_path / "b", "--corpus", tmp_path / "c.txt", "--dim", 6, "--out", tmp_path / "c")
    with Encoder(tmp_path / "b") as old, Encoder(tmp_path / "c") as new:
        assert new.manifest.whitening is not None
        assert new.manifest.whitening.common_components == 1
        want = old.encode(texts[:30], truncate_dim=6)
        np.testing.assert_allclose(new.encode(texts[:30]), want, atol=1e-4 * np.abs(want).max())
