"""Test `whiten-export` as people and scripts call it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from support.checkpoints import save_checkpoint
from support.cli import invoke
from support.corpus import sentences
from support.families import WIDTH
from whiten import Encoder, IntegrityError
from whiten_export.commands.export import export
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.parity import GATES

pytestmark = pytest.mark.slow

run = partial(invoke, export)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_readme_command_writes_a_bundle(folder: Path, checkpoint: Callable[[str], Path], corpus_file: Path) -> None:
    result = run(checkpoint("bert"), "--layers", "1,-1", "--corpus", corpus_file, "--json")
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["bundle"] == "bundles/tiny-bert-l1-l4"
    manifest = json.loads((folder / summary["bundle"] / "whiten.json").read_text())
    assert summary["manifest"] == {name: value for name, value in manifest.items() if name != "manifest_sha256"}
    assert summary["bytes"] == sum(record["bytes"] for record in manifest["files"].values())
    assert manifest["layers"] == [1, 4]
    assert manifest["parity"]["min_cosine"] >= 0.999999
    assert manifest["whitening"]["n_samples"] == 400
    assert "wrote bundles/tiny-bert-l1-l4" in result.stderr
    assert "rough whitening" not in result.stderr
    assert [path.name for path in folder.iterdir()] == ["bundles"]
    with Encoder(folder / summary["bundle"]) as encoder:
        assert encoder.encode("text").shape == (WIDTH,)


def test_defaults_are_layer_1_and_the_last(folder: Path, checkpoint: Callable[[str], Path], corpus_file: Path) -> None:
    result = run(
        checkpoint("bert"), "--corpus", corpus_file, "--out", "b", "--dim", 8, "--normalize", "--max-length", 9
    )
    assert result.exit_code == 0, result.stderr
    with Encoder("b") as encoder:
        assert encoder.manifest.layers == (1, 4)
        assert (encoder.dimension, encoder.max_seq_length) == (8, 9)
        np.testing.assert_allclose(np.linalg.norm(encoder.encode(["a", "b c"]), axis=1), 1, rtol=1e-5)


def test_the_same_inputs_give_the_same_bytes(
    tiny_bundle: Path, folder: Path, checkpoint: Callable[[str], Path], corpus_file: Path
) -> None:
    options = ("--layers", "1,4", "--whitening", "pca", "--corpus", corpus_file)
    assert run(checkpoint("bert"), *options, "--out", "tiny").exit_code == 0
    for name in read_manifest(tiny_bundle).files:
        assert (folder / "tiny" / name).read_bytes() == (tiny_bundle / name).read_bytes(), name
    assert (folder / "tiny" / "whiten.json").read_bytes() == (tiny_bundle / "whiten.json").read_bytes()


def test_the_whitening_file_whitens_the_corpus(tiny_bundle: Path) -> None:
    stored = load_file(tiny_bundle / "whitening.safetensors")
    assert {name: array.dtype for name, array in stored.items()} == {
        "mean": np.float64, "W": np.float64, "eigenvalues": np.float64, "n": np.int64,
        "corpus_mean": np.float64, "covariance": np.float64,
    }  # fmt: skip
    vectors = Encoder(tiny_bundle).encode(sentences(400)).astype(np.float64)
    np.testing.assert_allclose(vectors.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(np.cov(vectors.T)[:24, :24], np.eye(24), atol=1e-2)


def test_an_existing_bundle_is_kept_without_force(
    folder: Path, checkpoint: Callable[[str], Path], corpus_file: Path
) -> None:
    command = (checkpoint("bert"), "--layers", "0", "--corpus", corpus_file, "--out", "b")
    assert run(*command).exit_code == 0
    before = (folder / "b" / "whiten.json").stat().st_mtime_ns
    refused = run(*command)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "--force" in refused.stderr
    assert (folder / "b" / "whiten.json").stat().st_mtime_ns == before
    assert run(*command, "--force").exit_code == 0
    assert (folder / "b" / "whiten.json").stat().st_mtime_ns > before


MISTAKES = [
    (["--layers", "5"], 2, "layer 5 does not exist: the model has layers 0 (embeddings) to 4"),
    (["--layers", "one"], 2, "wanted whole numbers"),
    (["--dim", "33"], 2, "wanted 1 to 32"),
    (["--dim", "8", "--whitening", "none"], 2, "without whitening"),
    (["--max-length", "49"], 2, "positions for 48 tokens"),
    (["--max-length", "2"], 2, "special tokens alone take 2"),
    (["--max-sentences", "20", "--whitening", "pca"], 2, "20 sentences cannot whiten 32 dimensions"),
    (["--corpus", "nowhere.txt"], 2, "'nowhere.txt' does not exist"),
    (["--corpus", "latin.txt"], 1, "line 2 is not UTF-8"),
    (["--corpus", "binary.txt"], 1, "NUL byte"),
    (["--corpus", "empty.txt"], 1, "holds no sentence"),
    (["--corpus", "same.txt"], 2, "all 50 sentences have the same vector"),
    (["--layers", "0", "--pooling", "cls"], 2, "sentences have the same vector"),
    (["--corpus", "table.csv"], 2, "choose one with --column"),
    (["--corpus", "table.csv", "--column", "c"], 2, "has no column 'c', only 'a', 'b'"),
    (["--device", "tpu"], 2, "wanted cpu, cuda or cuda:N"),
    (["--revision", "main"], 2, "is for the hub"),
    (["--out", "file/bundle"], 2, "file' is not a directory, so 'file/bundle' cannot be written; choose another --out"),
    (["--out", "file"], 2, "is not a bundle"),
]


@pytest.mark.parametrize(("options", "code", "message"), MISTAKES, ids=[" ".join(case[0]) for case in MISTAKES])
def test_errors_are_one_line_and_leave_no_files(
    folder: Path, checkpoint: Callable[[str], Path], options: list[str], code: int, message: str
) -> None:
    (folder / "latin.txt").write_bytes(b"fine\ncaf\xe9\n")
    (folder / "binary.txt").write_bytes(b"\x7fELF\x00\x01")
    (folder / "empty.txt").write_text("\n\n")
    (folder / "same.txt").write_text("again\n" * 50)
    (folder / "table.csv").write_text("a,b\n1,2\n")
    (folder / "file").touch()
    before = sorted(path.name for path in folder.iterdir())
    result = run(checkpoint("bert"), *options)
    assert result.exit_code == code, result.stderr
    errors = [line for line in result.stderr.splitlines() if not line.startswith(("·", "warning: "))]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert message in errors[0]
    assert result.stdout == ""
    left = [path for path in folder.rglob("*") if path.name not in before and path.name != "bundles"]
    assert left == []


def test_lines_of_any_length_are_sentences(folder: Path, checkpoint: Callable[[str], Path], corpus_file: Path) -> None:
    (folder / "long.txt").write_text("\n\n" + "word " * 20_000 + "\n" + "x" * 100_000 + "\n")
    command = ("--corpus", corpus_file, "--corpus", "long.txt", "--layers", "0", "--json", "--out", "b")
    result = run(checkpoint("bert"), *command)
    assert json.loads(result.stdout)["manifest"]["whitening"]["n_samples"] == 402


def test_unknown_model_suggests_a_similar_name() -> None:
    result = run("distilbret")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 2)
    assert "did you mean distilbert" in result.stderr


def test_missing_weights_are_refused(folder: Path) -> None:
    """transformers replaces missing weights with random numbers, and only logs it."""
    from safetensors.numpy import save_file

    path = save_checkpoint("bert", folder / "holes")
    weights = load_file(path / "model.safetensors")
    removed = next(name for name in weights if "layer.2" in name)
    save_file(
        {name: array for name, array in weights.items() if name != removed},
        path / "model.safetensors",
        {"format": "pt"},
    )
    result = run(path, "--whitening", "none")
    assert result.exit_code == 1
    assert "1 weights are missing" in result.stderr
    assert not (folder / "bundles").exists() or list((folder / "bundles").iterdir()) == []


def test_remote_code_is_refused(folder: Path) -> None:
    path = save_checkpoint("bert", folder / "custom")
    config = json.loads((path / "config.json").read_text())
    config |= {"model_type": "my-own", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
    (path / "config.json").write_text(json.dumps(config))
    (path / "code.py").write_text("raise SystemExit('this code ran')")
    result = run(path)
    assert result.exit_code == 2
    assert "--trust-remote-code" in result.stderr


def test_graph_that_differs_from_pytorch_is_not_written(
    folder: Path, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter is replaced by one that changes a weight of the second block."""
    from whiten_export.sources.networks import pytorch

    real = pytorch.trace

    def changed(network: Any, layers: tuple[int, ...]) -> Any:
        with torch.no_grad():
            network.encoder.layer[1].output.dense.weight.mul_(1.5)
        return real(network, layers)

    monkeypatch.setattr(pytorch, "trace", changed)
    result = run(checkpoint("bert"), "--whitening", "none", "--layers", "1,2")
    assert result.exit_code == 1
    assert f"differs from torch {torch.__version__}, float64" in result.stderr
    assert "no bundle was written" in result.stderr
    assert list((folder / "bundles").iterdir()) == []


def test_vectors_that_float32_cannot_whiten_are_refused(folder: Path, corpus_file: Path) -> None:
    """The first block has hardly any attention, so that its first token is nearly the same in all texts."""
    from safetensors.numpy import save_file

    path = save_checkpoint("bert", folder / "flat")
    weights = load_file(path / "model.safetensors")
    weights["encoder.layer.0.attention.output.dense.weight"] *= 1e-5
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    result = run(path, "--layers", "1", "--pooling", "cls", "--corpus", corpus_file)
    assert result.exit_code == 1
    assert "use mean pooling" in result.stderr
    assert run(path, "--layers", "1", "--corpus", corpus_file).exit_code == 0


def _start(directory: Path, corpus: Path, out: Path, prelude: str = "", *more: str) -> subprocess.Popen[str]:
    code = f"{prelude}\nfrom whiten_export.commands.export import main; main()"
    command = [sys.executable, "-c", code, directory, "--corpus", corpus, "--out", out, *more]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


_KILLED_AT = """
import os, signal
from whiten_runtime.commands.console import ConsoleReporter
def stage(self, text):
    if text.startswith({moment!r}):
        os.kill(os.getpid(), signal.SIGKILL)
ConsoleReporter.stage = stage
"""


@pytest.mark.slow
def test_killed_export_leaves_no_bundle(folder: Path, checkpoint: Callable[[str], Path], corpus_file: Path) -> None:
    out = folder / "bundle"
    with _start(checkpoint("bert"), corpus_file, out, _KILLED_AT.format(moment="checking the vectors")) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not out.exists()
    (left,) = folder.iterdir()
    assert left.name.startswith(".bundle.partial-")
    assert run(checkpoint("bert"), "--corpus", corpus_file, "--out", out).exit_code == 0
    with Encoder(out) as encoder:
        assert encoder.verify().min_cosine > 0.999999


def test_sigterm_removes_temporary_files(folder: Path, checkpoint: Callable[[str], Path], corpus_file: Path) -> None:
    with _start(checkpoint("bert"), corpus_file, folder / "bundle") as process:
        assert process.stderr is not None
        while "fitting on" not in process.stderr.readline():
            assert process.poll() is None
        process.terminate()
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert list(folder.iterdir()) == []


def test_full_disk_is_one_line_and_leaves_no_files(
    folder: Path, checkpoint: Callable[[str], Path], corpus_file: Path
) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    with _start(checkpoint("bert"), corpus_file, folder / "bundle", limit) as process:
        _, errors = process.communicate()
    assert process.returncode == 1
    (error,) = (line for line in errors.splitlines() if not line.startswith("·"))
    assert "cannot be written" in error
    assert list(folder.iterdir()) == []


def test_bundle_with_external_weights_can_be_moved_and_is_verified(
    folder: Path, checkpoint: Callable[..., Path], corpus_file: Path
) -> None:
    assert run(checkpoint("bert", 4), "--corpus", corpus_file, "--out", "b").exit_code == 0
    weights = folder / "b" / "onnx" / "model.onnx_data"
    (folder / "b").rename(folder / "moved")
    with Encoder(folder / "moved") as encoder:
        assert "onnx/model.onnx_data" in encoder.manifest.files
        assert GATES["fp32"].passes(encoder.verify())
    told = json.loads((folder / "moved" / "config.json").read_bytes())["transformers.js_config"]
    assert told == {"dtype": "fp32", "use_external_data_format": {"model.onnx": 1}}
    with (folder / "moved" / "onnx" / weights.name).open("r+b") as file:
        file.write(b"\x01\x02\x03\x04")
    with pytest.raises(IntegrityError, match="onnx_data"):
        Encoder(folder / "moved")
