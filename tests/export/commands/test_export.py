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
from support.corpus import sentences
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
    assert error == "error: this fnet network has operator DFT, which a bundle for cpu may not use: it is not supported"
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
    assert "wrote bundles/tiny-bert-l1-l4-8d-norm" in result.stderr
    assert "rough whitening" not in result.stderr
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


def test_the_whitening_file_whitens_the_corpus(fresh_bundle: Path) -> None:
    stored = load_file(fresh_bundle / "whitening.safetensors")
    assert {name: array.dtype for name, array in stored.items()} == {
        "mean": np.float64, "W": np.float64, "eigenvalues": np.float64, "n": np.int64,
        "corpus_mean": np.float64, "covariance": np.float64,
    }  # fmt: skip
    vectors = Encoder(fresh_bundle).encode(sentences(400)).astype(np.float64)
    np.testing.assert_allclose(vectors.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(np.cov(vectors.T)[:24, :24], np.eye(24), atol=1e-2)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--dim", "33"], 2, "wanted 1 to 32"),
        (["--max-length", "2"], 2, "special tokens alone take 2"),
        (["--max-sentences", "some"], 2, "max-sentences is 'some'; wanted a whole number of at least 1, or all"),
        (["--max-sentences", "20", "--whitening", "pca"], 2, "20 sentences cannot whiten 32 dimensions"),
        (["--corpus", "nowhere.txt"], 2, "'nowhere.txt' does not exist"),
        (["--corpus", "latin.txt"], 1, "line 2 is not UTF-8"),
        (["--corpus", "same.txt"], 2, "all 50 sentences have the same vector"),
        (
            ["--layers", "0", "--pooling", "cls"],
            1,
            "takes a token that never changes, as cls of a decoder or of layer 0",
        ),
        (["--corpus", "table.csv", "--column", "c"], 2, "has no column 'c', only 'a', 'b'"),
        (["--out", "file/bundle"], 2, "file' is not a directory, so 'file/bundle' cannot be written; choose another"),
        (["--out", "file"], 2, "is not a bundle"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_errors_are_one_line_and_leave_no_files(
    folder: Path, checkpoint: Callable[[str], Path], options: list[str], code: int, message: str
) -> None:
    (folder / "latin.txt").write_bytes(b"fine\ncaf\xe9\n")
    (folder / "same.txt").write_text("again\n" * 50)
    (folder / "table.csv").write_text("a,b\n1,2\n")
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
    assert "use mean pooling" in refused(*command, "--pooling", "cls", code=1)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "warned"),
    [
        (lambda n: f"A cat number {'abcdefghij'[n % 10]} sits on mat {'klm'[n % 3]}.", "only 30 differ: a whitening"),
        (lambda n: f"event {n} took {7 * n} ms", "many differ in nothing but numbers, 1 if numbers"),
    ],
)
def test_a_corpus_that_repeats_itself_is_warned_of(
    folder: Path, checkpoint: Callable[[str], Path], line: Callable[[int], str], warned: str
) -> None:
    (folder / "many.txt").write_text("".join(f"{line(n)}\n" for n in range(2000)))
    options = ("--layers", "0,1", "--whitening", "pca", "--shrinkage", "0.5", "--corpus", "many.txt", "--out", "b")
    assert f"of the 384 sentences {warned}" in ok("export", checkpoint("bert"), *options).stderr
    if "30" in warned:
        error = refused("export", checkpoint("bert"), *options[:4], *options[6:8], "--out", "c")
        assert "30 sentences cannot whiten 32 dimensions" in error
