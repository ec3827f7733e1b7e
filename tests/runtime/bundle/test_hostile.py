"""Test files of a bundle that are no regular files, too large, not listed, or not what they are named."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from whiten import BundleError, Encoder, IntegrityError
from whiten_runtime.bundle.bundle import CLIENT_FILES, PROBE_VECTORS_FILE, PROBES_FILE, WHITENING_FILE, open_bundle
from whiten_runtime.bundle.manifest import MANIFEST_FILE

READ = (
    *(MANIFEST_FILE, "onnx/model.onnx", "tokenizer.json", PROBES_FILE, PROBE_VECTORS_FILE, WHITENING_FILE),
    *("config.json", "1_Pooling/config.json"),
)
"""Files that the runtime reads, and some that it does not."""


def one_line(error: pytest.ExceptionInfo[BundleError], name: str) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert name in message
    return message


def bound(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket is 107 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(50_000_000_000)


MADE: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "socket": bound,
    "folder": Path.mkdir,
    "sparse": sparse,
    "dangling": lambda path: path.symlink_to("nowhere"),
    "looping": lambda path: path.symlink_to(path.name),
}


@pytest.mark.skipif(os.name == "nt", reason="FIFOs and devices are POSIX")
@pytest.mark.parametrize(
    ("name", "make"),
    [
        (name, make)
        for name in READ
        for make in MADE
        if not (make == "sparse" and name in CLIENT_FILES)  # which may have any content
    ],
)
def test_only_regular_files_of_sensible_sizes_are_read(bundle: Path, name: str, make: str) -> None:
    path = bundle / name
    path.unlink()
    MADE[make](path)
    for verify_hashes in (True, False):
        with pytest.raises(BundleError) as caught:
            Encoder(bundle, verify_hashes=verify_hashes)
        one_line(caught, name)


def test_links_to_regular_files_are_read(bundle: Path, tmp_path: Path) -> None:
    """The hub's cache and other stores link each file to where its content is."""
    with Encoder(bundle) as encoder:
        expected = encoder.encode(["a text"])
    (tmp_path / "blobs").mkdir()
    for number, path in enumerate(sorted(path for path in bundle.rglob("*") if path.is_file())):
        blob = path.rename(tmp_path / "blobs" / str(number))
        path.symlink_to(blob)
    with Encoder(bundle) as encoder:
        assert np.array_equal(encoder.encode(["a text"]), expected)


@pytest.mark.parametrize(
    "name",
    [
        *("pytorch_model.bin", "custom.py", "modeling.PY", "model.ORT", "openvino_model.xml"),
        "openvino/openvino_model.bin",
        *("onnx/model_quantized.onnx", "other.safetensors", "MODEL.SafeTensors", "a/b/c.pkl", "weights.pt", "lib.so"),
        *("model.onnx_data_1", "onnx/model.onnx.data", "tf_model.h5", "model.gguf", "rust_model.ot", "x.pyc"),
    ],
)
def test_unlisted_files_that_programs_run_or_load_are_refused(bundle: Path, name: str) -> None:
    path = bundle / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    with pytest.raises(IntegrityError, match="not a file of this bundle.*remove it") as caught:
        open_bundle(bundle)
    one_line(caught, name)


def test_a_folder_may_have_any_name(bundle: Path) -> None:
    (bundle / "corpus.bin").mkdir()
    (bundle / "corpus.bin/notes.txt").write_text("texts")
    open_bundle(bundle)
    (bundle / "corpus.bin/model.bin").write_text("weights")
    with pytest.raises(IntegrityError, match=r"corpus\.bin/model\.bin: not a file of this bundle"):
        open_bundle(bundle)


def test_a_link_to_a_folder_counts_by_its_name(bundle: Path, tmp_path: Path) -> None:
    """Nothing follows it, so that its files are not seen."""
    (tmp_path / "elsewhere").mkdir()
    (bundle / "coreml.mlpackage").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IntegrityError, match=r"coreml\.mlpackage: not a file of this bundle"):
        open_bundle(bundle)


@pytest.mark.parametrize(
    "name",
    [
        *("notes.txt", ".gitattributes", ".gitignore", "LICENSE", "model.sig", "bundle.sigstore", "vocab.txt"),
        "merges.txt",
        *(".cache/huggingface/download/onnx/model.onnx.metadata", ".cache/huggingface/download/onnx/model.onnx.lock"),
        *(".git/refs/heads/weights.bin", ".git/hooks/pre-commit.py", "added_tokens.json", "tuned.json", ".DS_Store"),
    ],
)
def test_other_files_beside_those_of_a_bundle_are_left_alone(bundle: Path, name: str) -> None:
    path = bundle / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    assert open_bundle(bundle).path == bundle
