"""Test `whiten refit`: another whitening without PyTorch, on bundles of every kind."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

from support.bundles import add_unwhitened_output, contents, copy_bundle
from support.cli import ok, refused
from support.corpus import sentences
from support.families import WIDTH
from support.hub import Hub
from support.vectors import write_word_vectors
from whiten import Encoder
from whiten_runtime.bundle.bundle import EXTERNAL_DATA_FILE
from whiten_runtime.bundle.parity import compare
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.ort.session import BFLOAT16
from whiten_whitening.statistics import fit_statistics, load_statistics


def test_refit_on_the_same_corpus_equals_the_export(fresh_bundle: Path, corpus_file: Path, tmp_path: Path) -> None:
    """The export is made here, as eigenvectors with near eigenvalues turn with the rounding of the vectors.

    Those of the golden bundle differ by 4e-7 of the norm between onnxruntime 1.21 and 1.31, the whitened ones by 5e-6.
    """
    corpus = ("--corpus", corpus_file, "--max-sentences", "all")
    ok("refit", fresh_bundle, *corpus, "--whitening", "pca", "--out", tmp_path / "again")
    before, after = (load_file(root / "whitening.safetensors") for root in (fresh_bundle, tmp_path / "again"))
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-6, atol=1e-6 * np.abs(array).max())
    with Encoder(fresh_bundle) as old, Encoder(tmp_path / "again") as new:
        agreement = compare(new.encode(sentences(50)), old.encode(sentences(50)))
        assert agreement.max_difference < 2e-6, str(agreement)
        records = [msgspec.to_builtins(encoder.manifest.whitening) | {"settled": None} for encoder in (new, old)]
        isotropy = [[record.pop(key) for key in ("isotropy_before", "isotropy_after")] for record in records]
        assert records[0] == records[1]
        for got, wanted in zip(*isotropy, strict=True):
            assert got == pytest.approx(wanted, rel=1e-5, abs=1e-5)
        assert new.space == old.space


def test_the_proof_of_a_refit_names_options_of_its_provider(
    golden: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = copy_bundle(golden / "bundle-v1-int8", tmp_path)
    add_unwhitened_output(bundle)
    device = f"CPUExecutionProvider:{BFLOAT16}=1"
    monkeypatch.setenv("WHITEN_DEVICE", device)
    command = ("refit", bundle, "--corpus", corpus_file, "--whitening", "pca", "--out", tmp_path / "new", "--json")
    assert json.loads(ok(*command).stdout)["manifest"]["parity"]["provider"] == device


@pytest.mark.parametrize("moment", ["fit.fit_corpus", "fit.fit", "refit.set_head"])
def test_a_bundle_that_is_replaced_meanwhile_is_refused(
    moment: str, golden: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its vectors before whitening were those of another network."""
    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    add_unwhitened_output(bundle)
    place, _, name = moment.partition(".")
    module = import_module(f"whiten_export.{place}")
    function = getattr(module, name)

    def replace_after(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        bundle.rename(tmp_path / "before")
        copy_bundle(golden / "bundle-v1-int8", tmp_path)
        return result

    monkeypatch.setattr(module, name, replace_after)
    out = tmp_path / "out"
    error = refused("refit", bundle, "--corpus", corpus_file, "--whitening", "pca", "--out", out, code=1)
    assert "is another bundle than" in error or "replaced or altered since" in error
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--whitening", "none"),
        ("--whitening", "none", "--normalize"),
        ("--normalize", "--dim", 8),
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
    kept = ("--dim", 12, "--shrinkage", "oas") if method == "pca" else ()
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
        statistics = fit_statistics(bundle, Corpus((str(other_file),), None, None))
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
        assert new.manifest.normalize == old.manifest.normalize
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert config["transformers.js_config"] == {"dtype": "fp32"}
    pooling = json.loads((tmp_path / "new" / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == new.dimension
    ok("verify", tmp_path / "new")


@pytest.mark.slow
def test_refit_changes_only_the_weights_of_the_whitening(
    make: Callable[..., Path], other_file: Path, tmp_path: Path
) -> None:
    bundle = make("--precision", "int8", "--dim", 8)
    ok("refit", bundle, "--corpus", other_file, "--dim", 16, "--out", tmp_path / "new")
    graphs = (onnx.load(root / "onnx" / "model.onnx").graph for root in (bundle, tmp_path / "new"))
    old, new = ({part.name: onnx.numpy_helper.to_array(part) for part in graph.initializer} for graph in graphs)
    assert old.keys() == new.keys()
    for name, array in old.items():
        if name.startswith("whitening."):
            assert new[name].shape != array.shape or not np.array_equal(new[name], array)
        else:
            np.testing.assert_array_equal(new[name], array, err_msg=name)


@pytest.mark.slow
def test_isotropy_is_measured_before_and_after_whitening(tiny_bundle: Path, corpus_file: Path, tmp_path: Path) -> None:
    corpus = ("--corpus", corpus_file, "--max-sentences", "all")
    ok("refit", tiny_bundle, *corpus, "--whitening", "centre", "--out", tmp_path / "centred")
    with Encoder(tiny_bundle) as full, Encoder(tmp_path / "centred") as centred:
        whitening, rotated = full.manifest.whitening, centred.manifest.whitening
        before, after, only = whitening.isotropy_before, whitening.isotropy_after, rotated.isotropy_after
        units = full.encode(sentences(400), normalize_embeddings=True).astype(np.float64)
    cosines = (units @ units.T)[np.triu_indices(400, 1)]
    assert after.average_cosine == pytest.approx(cosines.mean(), abs=1e-4)
    assert before.average_cosine > 0.05 > abs(after.average_cosine)
    assert before.iso_score < after.iso_score
    assert before.iso_score == pytest.approx(only.iso_score, rel=1e-4)  # a rotation changes no spectrum
    assert after.partition_score > max(before.partition_score, 0.8)
    assert "isotropy    IsoScore" in ok("info", tiny_bundle).stdout


@pytest.mark.slow
def test_statistics_of_the_float32_bundle_whiten_the_int8_bundle(
    make: Callable[..., Path], other_file: Path, tmp_path: Path
) -> None:
    full, small = make("--whitening", "none"), make("--precision", "int8", "--dim", 8)
    stats = tmp_path / "s.safetensors"
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


def test_statistics_of_the_same_sentences_are_refused(
    tiny_bundle: Path, corpus_file: Path, other_file: Path, tmp_path: Path
) -> None:
    """Also where one of them has other sentences too; else a small corpus would pass for one of twice its size."""
    for name, files in {"s": [other_file], "t": [corpus_file], "u": [corpus_file, other_file]}.items():
        corpora = [word for file in files for word in ("--corpus", file)]
        ok("fit", tiny_bundle, *corpora, "-o", tmp_path / name)
    for first, second in ("ss", "su", "ut"):
        stats = ("--stats", tmp_path / first, "--stats", tmp_path / second)
        message = refused("refit", tiny_bundle, *stats, "--dim", 8, "--out", tmp_path / "b", code=2)
        assert f"{tmp_path / second}: has sentences of which other --stats are too" in message
    ok("refit", tiny_bundle, "--stats", tmp_path / "s", "--stats", tmp_path / "t", "--dim", 8, "--out", tmp_path / "b")


_WITHOUT_TORCH = """
import sys
for name in ('torch', 'transformers', 'onnxscript'): sys.modules[name] = None
from whiten_runtime.commands.console import main
main()
"""


@pytest.mark.slow
def test_fit_refit_and_drift_run_without_torch(
    tiny_bundle: Path, corpus_file: Path, other_file: Path, tmp_path: Path
) -> None:
    for arguments in (
        ("fit", tiny_bundle, "--corpus", other_file, "-o", "s.safetensors"),
        ("fit", tiny_bundle, "--corpus", corpus_file, "-o", "t.safetensors"),
        ("refit", tiny_bundle, "--stats", "s.safetensors", "--stats", "t.safetensors", "--out", "b"),
        ("refit", tiny_bundle, "--corpus", other_file, "--out", "c"),
        ("drift", "b", "--input", other_file),
    ):
        command = [sys.executable, "-c", _WITHOUT_TORCH, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ)
        assert done.returncode == 0, (arguments, done.stderr)


@pytest.mark.slow
def test_refit_of_sif_word_vectors_equals_the_export(tmp_path: Path) -> None:
    texts = sentences(500)
    write_word_vectors(tmp_path / "words.txt", texts, 12)
    (tmp_path / "c.txt").write_text("\n".join(texts) + "\n", "utf-8")
    options = ("--pooling", "sif", "--corpus", tmp_path / "c.txt", "--out", tmp_path / "b")
    ok("export", tmp_path / "words.txt", *options)
    ok("refit", tmp_path / "b", "--corpus", tmp_path / "c.txt", "--dim", 6, "--out", tmp_path / "c")
    with Encoder(tmp_path / "b") as old, Encoder(tmp_path / "c") as new:
        assert new.manifest.whitening is not None
        assert new.manifest.whitening.common_components == 1
        want = old.encode(texts[:30], truncate_dim=6)
        np.testing.assert_allclose(new.encode(texts[:30]), want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("options", [("--whitening", "pca"), (), ("--whitening", "zca")], ids=str)
def test_a_whitening_takes_the_place_of_the_authors_normalisation_as_in_an_export(
    tmp_path: Path, other_file: Path, options: tuple[str, ...]
) -> None:
    from sentence_transformers.sentence_transformer.modules import Normalize

    from support.published import save, static

    folder = save([static(), Normalize()], tmp_path / "model")
    ok("export", folder, "--out", tmp_path / "published")
    ok("refit", tmp_path / "published", "--corpus", other_file, *options, "--out", tmp_path / "new")
    with Encoder(tmp_path / "published") as published, Encoder(tmp_path / "new") as new:
        assert published.manifest.normalize
        assert not new.manifest.normalize
        assert np.ptp(np.linalg.norm(new.encode(sentences(50)), axis=1)) > 0.1
    ok("drift", tmp_path / "new", "--input", other_file)
    if options:
        ok("export", folder, "--corpus", other_file, *options, "--out", tmp_path / "exported")
        with Encoder(tmp_path / "exported") as exported, Encoder(tmp_path / "new") as new:
            want = exported.encode(sentences(50))
            np.testing.assert_allclose(new.encode(sentences(50)), want, atol=1e-3 * np.abs(want).max())
            assert exported.space == new.space


@pytest.mark.slow
def test_client_files_that_another_program_wrote_anew_do_not_contradict_the_new_manifest(
    tiny_bundle: Path, other_file: Path, tmp_path: Path
) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    rewritten = bundle / "sentence_bert_config.json"
    rewritten.write_text('{"max_seq_length": 16}', "utf-8")
    ok("refit", bundle, "--corpus", other_file, "--whitening", "zca", "--out", tmp_path / "new")
    with Encoder(tmp_path / "new") as new, Encoder(bundle) as old:
        assert new.max_seq_length == old.max_seq_length == 48
        assert new.manifest.files[rewritten.name] == old.manifest.files[rewritten.name]
    assert (tmp_path / "new" / rewritten.name).read_bytes() == rewritten.read_bytes()
    assert "manifest_sha256" in json.loads((tmp_path / "new" / "whiten.json").read_bytes())


@pytest.mark.slow
def test_transformers_js_is_told_that_the_new_graph_has_its_weights_beside_it(
    tiny_bundle: Path, other_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger whitening can move all weights to a file of their own."""
    monkeypatch.setattr("whiten_export.graph.build._INLINE_LIMIT", 1)
    ok("refit", tiny_bundle, "--corpus", other_file, "--out", tmp_path / "new")
    told = json.loads((tmp_path / "new" / "config.json").read_bytes())["transformers.js_config"]
    assert (tmp_path / "new" / "onnx" / "model.onnx_data").is_file()
    assert told["use_external_data_format"] == {"model.onnx": 1}
    ok("verify", tmp_path / "new")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_snapshot_of_the_hub_is_fitted_and_refitted_as_a_directory(
    hub: Hub,
    checkpoint: Callable[[str], Path],
    corpus_file: Path,
    other_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
) -> None:
    """All files in the cache of the real client are links to blobs, the file of the weights too."""
    local, spec = tmp_path / "local", ("--whitening", "pca", "--dim", 16)
    options = ("--layers", "1,4", *spec, "--precision", precision)
    with monkeypatch.context() as patch:
        patch.setattr("whiten_export.graph.build._INLINE_LIMIT", 1000)
        ok("export", checkpoint("bert"), "--corpus", corpus_file, *options, "--out", local)
    assert (local / EXTERNAL_DATA_FILE).is_file()
    hub.repositories["org/wide"] = contents(local)
    for number, bundle in enumerate((local, "org/wide")):
        made = tmp_path / str(number)
        made.mkdir()
        ok("fit", bundle, "--corpus", other_file, "--out", made / "stats")
        ok("refit", bundle, "--stats", made / "stats", *spec, "--shrinkage", "oas", "--out", made / "new")
        ok("refit", bundle, "--corpus", other_file, *spec, "--align-to", bundle, "--out", made / "aligned")
        ok("drift", bundle, "--input", corpus_file)
    snapshot = next((tmp_path / "cache").glob("models--org--wide/snapshots/*"))
    assert (snapshot / EXTERNAL_DATA_FILE).is_symlink()
    assert load_statistics(tmp_path / "0" / "stats")[1] == load_statistics(tmp_path / "1" / "stats")[1]
    for name in ("new", "aligned"):
        told = json.loads((tmp_path / "0" / name / "config.json").read_bytes())["transformers.js_config"]
        separate = (tmp_path / "0" / name / EXTERNAL_DATA_FILE).exists()
        assert told == {"dtype": "fp32"} | ({"use_external_data_format": {"model.onnx": 1}} if separate else {})
        assert not any(path.is_symlink() for path in (tmp_path / "1" / name).rglob("*"))
        assert contents(tmp_path / "0" / name) == contents(tmp_path / "1" / name)
