"""Test files of a bundle that are no regular files, too large, not listed, or not what they are named; and mutants."""

import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.bundles import rewrite_file
from whiten import BundleError, Encoder, IntegrityError
from whiten_runtime.bundle.bundle import CLIENT_FILES, PROBE_VECTORS_FILE, PROBES_FILE, WHITENING_FILE, open_bundle
from whiten_runtime.bundle.files import own_hash, with_own_hash
from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.errors import WhitenError

READ = (
    *(MANIFEST_FILE, "onnx/model.onnx", "tokenizer.json", PROBES_FILE, PROBE_VECTORS_FILE, WHITENING_FILE),
    *("config.json", "1_Pooling/config.json"),
)
"""Files that the runtime reads, and some that it does not."""


def one_line(error: pytest.ExceptionInfo[BundleError], name: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    assert name in message


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


@pytest.mark.parametrize("name", ["model.onnx_data_1", "openvino/openvino_model.bin", "a/b/other.SafeTensors_1"])
def test_unlisted_files_that_programs_run_or_load_are_refused(bundle: Path, name: str) -> None:
    path = bundle / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    with pytest.raises(IntegrityError) as caught:
        open_bundle(bundle)
    one_line(caught, name)


def test_a_folder_may_have_any_name(bundle: Path) -> None:
    (bundle / "corpus.bin").mkdir()
    (bundle / "corpus.bin/notes.txt").write_text("texts")
    open_bundle(bundle)
    (bundle / "corpus.bin/model.bin").write_text("weights")
    with pytest.raises(IntegrityError, match=r"corpus\.bin/model\.bin"):
        open_bundle(bundle)


def test_a_link_to_a_folder_counts_by_its_name(bundle: Path, tmp_path: Path) -> None:
    """Nothing follows it, so that its files are not seen."""
    (tmp_path / "elsewhere").mkdir()
    (bundle / "coreml.mlpackage").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IntegrityError, match=r"coreml\.mlpackage"):
        open_bundle(bundle)


@pytest.mark.parametrize(
    "name",
    [
        *("LICENSE", ".gitattributes", ".cache/huggingface/download/onnx/model.onnx.metadata"),
        *(".git/refs/heads/weights.bin", ".git/hooks/pre-commit.py", "added_tokens.json"),
    ],
)
def test_other_files_beside_those_of_a_bundle_are_left_alone(bundle: Path, name: str) -> None:
    path = bundle / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    assert open_bundle(bundle).path == bundle


MUTANTS = 500
TEXTS = ["a text", "another one, which is longer"]


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Flip, cut or insert some bytes."""
    place = chance.randrange(len(content))
    kind = chance.choice(("flip", "cut", "insert", "number"))
    if kind == "cut":
        return content[:place] + content[place + chance.choice((1, 8, 1000, len(content))) :]
    if kind == "insert":
        return content[:place] + chance.randbytes(chance.choice((1, 8))) + content[place:]
    if kind == "number":
        return content[:place] + content[place:].replace(b"1", b"%d" % chance.choice((0, -1, 7, 2**31, 2**70)), 1)
    return content[:place] + bytes([content[place] ^ (1 << chance.randrange(8))]) + content[place + 1 :]


@pytest.mark.slow
def test_mutants_are_refused_or_harmless(golden: Path, tmp_path: Path) -> None:
    """Half of them have their hashes computed anew, as by an author, and may give other vectors."""
    base = golden / "bundle-v1"
    with Encoder(base) as encoder:
        want = encoder.encode(TEXTS)
    names, chance = [MANIFEST_FILE, *sorted(read_manifest(base).files)], random.Random(0)
    refused = {True: 0, False: 0}
    for number in range(MUTANTS):
        name, rehashed, copy = chance.choice(names), number % 2 == 0, tmp_path / "copy"
        shutil.copytree(base, copy)
        content = mutated((base / name).read_bytes(), chance)
        if not rehashed:
            (copy / name).write_bytes(content)
        elif name != MANIFEST_FILE:
            rewrite_file(copy, name, content)
        else:
            (copy / name).write_bytes(with_own_hash(content) if own_hash(content) else content)
        try:
            with Encoder(copy) as encoder:
                got, passes = encoder.encode(TEXTS), encoder.verify().min_cosine > 0.999999
        except WhitenError as error:
            assert "\n" not in str(error)
            refused[rehashed] += 1
        else:
            assert rehashed or (passes and np.array_equal(got, want)), (number, name)
        shutil.rmtree(copy)
    assert all(MUTANTS / 10 < count < MUTANTS / 2 for count in refused.values()), refused
