"""Test `whiten-export` as people and scripts call it."""

import inspect
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from support.checkpoints import save_checkpoint
from support.cli import ok, refused
from support.families import WIDENED, Family
from support.vocabularies import write_wordpiece
from whiten import Encoder, IntegrityError
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.parity import GATES

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_network_of_an_operator_that_bundles_do_not_have_is_refused_by_its_name(folder: Path) -> None:
    """A Fourier transform is no operator of a bundle; the error is not that of opening one of somebody else."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    save_checkpoint(Family("fnet", write_wordpiece, sizes, tokenizer_config=settings), folder / "fourier")
    error = refused("export", folder / "fourier", "--layers", 1, "--whitening", "none", code=1)
    assert "operator DFT" in error
    assert not list(folder.rglob("*.onnx"))


def test_a_bundle_of_layer_1_and_the_last_is_the_default(
    folder: Path, checkpoint: Callable[[str], Path], corpus_file: Path
) -> None:
    options = ("--dim", 8, "--normalize", "--max-length", 9)
    result = ok("export", checkpoint("bert"), "--corpus", corpus_file, *options, "--json")
    summary = json.loads(result.stdout)
    assert summary["bundle"] == "bundles/tiny-bert-l1-l4-8d-norm"
    manifest = json.loads((folder / summary["bundle"] / "whiten.json").read_text())
    assert summary["manifest"] == {name: value for name, value in manifest.items() if name != "manifest_sha256"}
    assert summary["bytes"] == sum(record["bytes"] for record in manifest["files"].values())
    assert manifest["layers"] == [1, 4]
    assert manifest["parity"]["min_cosine"] >= 0.999999
    assert manifest["whitening"]["n_samples"] == 12 * 32
    assert [path.name for path in folder.iterdir()] == ["bundles"]
    with Encoder(folder / summary["bundle"]) as encoder:
        assert (encoder.encode("text").shape, encoder.max_seq_length) == ((8,), 9)
        np.testing.assert_allclose(np.linalg.norm(encoder.encode(["a", "b c"]), axis=1), 1, rtol=1e-5)


def test_the_same_inputs_give_the_same_bytes_and_replace_a_bundle_with_force_alone(
    folder: Path, checkpoint: Callable[..., Path], corpus_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whiten_export.sources import pytorch

    corpus = ("--corpus", corpus_file, "--max-sentences", "all")
    command = ("export", checkpoint("bert", WIDENED), "--layers", "1,2", "--whitening", "pca", *corpus)
    with monkeypatch.context() as patch:
        patch.setattr(pytorch, "trace", inspect.unwrap(pytorch.trace))  # traced anew by each export
        for out in ("other/tiny", "tiny"):
            ok(*command, "--out", out)
    for name in (*read_manifest(folder / "tiny").files, "whiten.json"):
        assert (folder / "tiny" / name).read_bytes() == (folder / "other" / "tiny" / name).read_bytes(), name
    before = (folder / "tiny" / "whiten.json").stat().st_mtime_ns
    assert "--force" in refused(*command, "--out", "tiny")
    assert (folder / "tiny" / "whiten.json").stat().st_mtime_ns == before
    ok(*command, "--out", "tiny", "--force")
    assert (folder / "tiny" / "whiten.json").stat().st_mtime_ns > before


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--dim", "33"], 2, "1 to 32"),
        (["--max-length", "2"], 2, "max-length is 2"),
        (["--max-sentences", "20", "--whitening", "pca"], 2, "20 sentences"),
        (["--corpus", "nowhere.txt"], 2, "'nowhere.txt'"),
        (["--corpus", "latin.txt"], 1, "line 2"),
        (["--corpus", "same.txt"], 2, "50 sentences"),
        (["--layers", "0", "--pooling", "cls"], 1, "cls"),
        (["--out", "file/bundle"], 2, "'file/bundle'"),
    ],
)
def test_errors_are_one_line_and_leave_no_files(
    folder: Path, checkpoint: Callable[[str], Path], options: list[str], code: int, message: str
) -> None:
    (folder / "latin.txt").write_bytes(b"fine\ncaf\xe9\n")
    (folder / "same.txt").write_text("again\n" * 50)
    (folder / "file").touch()
    before = sorted(path.name for path in folder.iterdir())
    assert message in refused("export", checkpoint("bert"), *options, code=code)
    assert not [path for path in folder.rglob("*") if path.name not in before and path.name != "bundles"]


def test_vectors_that_float32_cannot_whiten_are_refused(folder: Path, corpus_file: Path) -> None:
    """The first block has hardly any attention, so that its first token is nearly the same in all texts."""
    path = save_checkpoint("bert", folder / "flat", num_hidden_layers=1)
    weights = load_file(path / "model.safetensors")
    weights["encoder.layer.0.attention.output.dense.weight"] *= 1e-5
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    command = ("export", path, "--layers", "1", "--corpus", corpus_file)
    refused(*command, "--pooling", "cls", code=1)
    ok(*command)


_WAITS_AT_THE_PROOF = """
import signal, sys
from whiten_export.commands.export import main
from whiten_runtime.commands.console import ConsoleReporter

def stage(self, text):
    print(text, file=sys.stderr, flush=True)
    if text[:8] == "checking":
        signal.pause()

ConsoleReporter.stage = stage
main()
"""


def test_sigterm_removes_temporary_files(folder: Path, checkpoint: Callable[..., Path]) -> None:
    command = [sys.executable, "-c", _WAITS_AT_THE_PROOF, checkpoint("bert", WIDENED), "--whitening", "none"]
    with subprocess.Popen([*command, "--out", folder / "bundle"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("checking"):
            assert process.poll() is None
        (hidden,) = folder.iterdir()
        assert hidden.name.startswith(".bundle.partial-")
        process.terminate()
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert list(folder.iterdir()) == []


def test_bundle_with_external_weights_can_be_moved_and_is_verified(
    folder: Path, checkpoint: Callable[..., Path], corpus_file: Path
) -> None:
    ok("export", checkpoint("bert", 4), "--corpus", corpus_file, "--out", "b")
    (folder / "b").rename(folder / "moved")
    with Encoder("moved") as encoder:
        assert "onnx/model.onnx_data" in encoder.manifest.files
        assert GATES["fp32"].passes(encoder.verify())
    told = json.loads(Path("moved", "config.json").read_bytes())["transformers.js_config"]
    assert told == {"dtype": "fp32", "use_external_data_format": {"model.onnx": 1}}
    with Path("moved", "onnx", "model.onnx_data").open("r+b") as file:
        file.write(b"\x01\x02\x03\x04")
    with pytest.raises(IntegrityError, match="onnx_data"):
        Encoder("moved")


def test_a_corpus_that_repeats_itself_is_no_larger_for_it(folder: Path, checkpoint: Callable[[str], Path]) -> None:
    lines = (f"A cat number {'abcdefghij'[n % 10]} sits on mat {'klm'[n % 3]}.\n" for n in range(2000))
    (folder / "many.txt").write_text("".join(lines))
    command = ("export", checkpoint("bert"), "--layers", "0,1", "--whitening", "pca", "--corpus", "many.txt")
    assert "only 30 differ" in ok(*command, "--shrinkage", "0.5", "--out", "b").stderr
    assert "30 sentences" in refused(*command, "--out", "c")
