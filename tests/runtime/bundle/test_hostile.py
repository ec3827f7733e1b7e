"""Test files of a bundle that are no regular files, too large, not listed, or not what they are named."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.bundles import copy_bundle, edit_manifest, rewrite_file
from whiten import BundleError, Encoder, IntegrityError
from whiten_runtime.bundle.bundle import PROBE_VECTORS_FILE, PROBES_FILE, WHITENING_FILE, open_bundle
from whiten_runtime.bundle.manifest import MANIFEST_FILE

READ = (
    *(MANIFEST_FILE, "onnx/model.onnx", "tokenizer.json", PROBES_FILE, PROBE_VECTORS_FILE, WHITENING_FILE),
    *("config.json", "1_Pooling/config.json"),
)
"""Files that the runtime reads, and some that it does not."""


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return copy_bundle(tiny_bundle, tmp_path)


def one_line(error: pytest.ExceptionInfo[BundleError], name: str) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert name in message
    return message


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


def bound(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket is 107 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def folder(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(50_000_000_000)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def looping(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.skipif(os.name == "nt", reason="FIFOs and devices are POSIX")
@pytest.mark.parametrize("make", [pipe, endless, terminal, bound, folder, sparse, dangling, looping])
@pytest.mark.parametrize("name", READ)
def test_only_regular_files_of_sensible_sizes_are_read(bundle: Path, name: str, make: Callable[[Path], None]) -> None:
    path = bundle / name
    path.unlink()
    make(path)
    for verify_hashes in (True, False):
        with pytest.raises(BundleError) as caught:
            Encoder(bundle, verify_hashes=verify_hashes)
        one_line(caught, name)


@pytest.mark.parametrize("name", ["tokenizer.json", PROBES_FILE, PROBE_VECTORS_FILE, WHITENING_FILE, "onnx/model.onnx"])
def test_listed_files_that_are_too_large_are_refused_before_they_are_read(bundle: Path, name: str) -> None:
    size = 50_000_000_000
    sparse(bundle / name)
    edit_manifest(bundle, lambda manifest: manifest["files"][name].update(bytes=size))
    with pytest.raises(BundleError, match="50,000,000,000 bytes; a bundle's .* at most") as caught:
        Encoder(bundle)
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
        *(
            "pytorch_model.bin",
            "custom.py",
            "modeling.PY",
            "model.ORT",
            "openvino_model.xml",
            "openvino/openvino_model.bin",
        ),
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
        *(
            "notes.txt",
            ".gitattributes",
            ".gitignore",
            "LICENSE",
            "model.sig",
            "bundle.sigstore",
            "vocab.txt",
            "merges.txt",
        ),
        *(".cache/huggingface/download/onnx/model.onnx.metadata", ".cache/huggingface/download/onnx/model.onnx.lock"),
        *(".git/refs/heads/weights.bin", ".git/hooks/pre-commit.py", "added_tokens.json", "tuned.json", ".DS_Store"),
    ],
)
def test_other_files_beside_those_of_a_bundle_are_left_alone(bundle: Path, name: str) -> None:
    path = bundle / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    assert open_bundle(bundle).path == bundle


@pytest.mark.parametrize(
    "content", [b'{"texts": ["\xff\xfe"]}', b"\xff", b'{"texts":' + b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000]
)
def test_probes_that_are_not_utf8_or_nested_deeply_are_refused(bundle: Path, content: bytes) -> None:
    rewrite_file(bundle, PROBES_FILE, content)
    with pytest.raises(BundleError) as caught, Encoder(bundle) as encoder:
        encoder.verify()
    one_line(caught, str(bundle))


@pytest.mark.parametrize("number", [2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**400])
def test_padding_tokens_that_no_table_has_are_refused(bundle: Path, number: int) -> None:
    edit_manifest(bundle, lambda manifest: manifest.update(pad_token_id=number))
    with pytest.raises(BundleError) as caught:
        Encoder(bundle)
    one_line(caught, str(bundle))


@pytest.mark.parametrize("number", [2**31, 2**63, 2**64 - 1])
def test_widths_beyond_any_model_are_refused(bundle: Path, number: int) -> None:
    edit_manifest(bundle, lambda manifest: manifest.update(dimension=number))
    with pytest.raises(BundleError) as caught:
        Encoder(bundle)
    one_line(caught, str(bundle))


def test_a_path_with_nul_is_refused(bundle: Path) -> None:
    for path in ("a\0b", f"{bundle}\0", "hf://a/b\0"):
        with pytest.raises((BundleError, ValueError)) as caught:
            Encoder(path)
        assert "embedded null" not in str(caught.value)
        assert "\0" not in str(caught.value)


@pytest.mark.skipif(os.name == "nt", reason="names are bytes on POSIX alone")
@pytest.mark.parametrize("name", [b"caf\xe9", b"\xff\xfe", "ünïcode".encode()])
def test_a_path_that_is_not_utf8_opens(tiny_bundle: Path, tmp_path: Path, name: bytes) -> None:
    try:
        (tmp_path / os.fsdecode(name)).mkdir()
    except OSError:
        pytest.skip("this file system takes no such names")
    bundle = copy_bundle(tiny_bundle, tmp_path / os.fsdecode(name))
    with Encoder(tiny_bundle) as encoder:
        expected = encoder.encode(["a text"])
    with Encoder(bundle) as encoder:
        assert np.array_equal(encoder.encode(["a text"]), expected)
        encoder.verify()
        assert encoder.ranges().shape == (2, 32)
