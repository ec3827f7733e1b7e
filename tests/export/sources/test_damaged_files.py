"""Test that a damaged file of a checkpoint is named in one line before the network is traced, and runs no code."""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load, save
from safetensors.torch import load_file

from support.checkpoints import write_json
from support.cli import refused
from support.families import WIDTH
from whiten import WhitenError
from whiten_export.sources.checkpoint import Checkpoint
from whiten_export.sources.onnx_encoder import OnnxEncoder
from whiten_export.sources.sentence_transformers import load_module

WEIGHT = "encoder.layer.1.attention.self.query.weight"
Change = Callable[[bytes], bytes]


def header(change: Callable[[dict[str, Any]], object]) -> Change:
    """Change the header of a file of safetensors."""

    def changed(content: bytes) -> bytes:
        (size,) = struct.unpack("<Q", content[:8])
        fields = json.loads(content[8 : 8 + size])
        change(fields)
        written = json.dumps(fields).encode()
        return struct.pack("<Q", len(written)) + written + content[8 + size :]

    return changed


def weight(value: float) -> Change:
    """Change one number of a weight."""

    def changed(content: bytes) -> bytes:
        weights = load(content)
        weights[WEIGHT].flat[3] = value
        return save(weights, {"format": "pt"})

    return changed


def fields(change: Callable[[dict[str, Any]], object]) -> Change:
    """Change a JSON document."""

    def changed(content: bytes) -> bytes:
        found = json.loads(content)
        change(found)
        return json.dumps(found).encode()

    return changed


def split_at(pattern: str) -> Change:
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return fields(lambda content: content.update(pre_tokenizer=step))


def without_unknown(content: dict[str, Any]) -> None:
    del content["model"]["vocab"]["[UNK]"]
    content["added_tokens"] = [one for one in content["added_tokens"] if one["content"] != "[UNK]"]


WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
HOLDS = "{file}: '" + WEIGHT + "' holds {kind}"

CASES: list[tuple[str, Change, str]] = [
    (WEIGHTS, lambda content: b"version https://git-lfs.github.com/spec/v1\n", WEIGHTS),
    (WEIGHTS, lambda content: content[: len(content) // 2], WEIGHTS),
    (WEIGHTS, header(lambda found: found[WEIGHT].update(dtype="I32")), HOLDS.format(file=WEIGHTS, kind="I32")),
    (WEIGHTS, weight(np.nan), f"{WEIGHTS}: '{WEIGHT}' holds NaN"),
    (CONFIG, lambda content: b"[" * 100_000, CONFIG),
    (CONFIG, fields(lambda found: found.update(hidden_size="x")), "cannot load"),
    (CONFIG, fields(lambda found: found.update(vocab_size=5000)), CONFIG),
    (TOKENIZER, split_at("("), f"{TOKENIZER}: cannot be read"),
    (TOKENIZER, fields(without_unknown), "[UNK]"),
    (TOKENIZER, fields(lambda found: found["model"]["vocab"].update(zzzz=90_000)), "90000"),
]


@pytest.fixture(scope="module")
def whole(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a `tokenizer.json`."""
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path_factory.mktemp("whole") / "tiny-bert"))
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def refusal(folder: Path, out: Path) -> str:
    error = refused("export", folder, "--layers", 1, "--whitening", "none", "--out", out, code=1)
    assert "unexpected" not in error
    assert not out.exists()
    return error


@pytest.mark.parametrize(("name", "change", "words"), CASES)
def test_it_is_named(name: str, change: Change, words: str, whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    assert words in refusal(folder, tmp_path / "out")


@pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
def test_whole_numbers_in_a_file_of_pytorch(old: bool, whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    state = load_file(folder / WEIGHTS)
    state[WEIGHT] = state[WEIGHT].to(torch.int8)
    (folder / WEIGHTS).unlink()
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not old)
    assert HOLDS.format(file=folder / "pytorch_model.bin", kind="INT8") in refusal(folder, tmp_path / "out")


def test_weights_of_a_module(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"in_features": WIDTH, "out_features": 2, "bias": False})
    file = tmp_path / "model.safetensors"
    file.write_bytes(save({"linear.weight": np.full((2, WIDTH), np.inf, np.float32)}))
    with pytest.raises(WhitenError, match=f"^{file}: 'linear.weight'"):
        load_module("Dense", tmp_path)


@pytest.mark.parametrize("content", ["5", "[" * 100_000], ids=["number", "deep"])
def test_config_of_an_onnx_encoder(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(WhitenError, match=f"^{tmp_path / 'config.json'}: "):
        OnnxEncoder(Checkpoint("model", "model", "onnx", tmp_path, (tmp_path / "model.onnx",)))


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize(
    "write",
    [
        torch.save,
        partial(torch.save, _use_new_zipfile_serialization=False),
        lambda content, file: file.write_bytes(pickle.dumps(content)),
        lambda content, file: torch.save([1, 2], file),
        lambda content, file: file.write_bytes(b"nothing"),
    ],
)
def test_pickles_run_no_code_and_are_named_without_the_advice_of_torch_to_run_them(
    write: Callable[[Any, Path], object], whole: Path, tmp_path: Path
) -> None:
    folder, ran = Path(shutil.copytree(whole, tmp_path / "model")), tmp_path / "ran"
    state = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    write({**state, "extra": Payload(ran)}, folder / "pytorch_model.bin")
    error = refusal(folder, tmp_path / "out")
    assert not ran.exists()
    assert f"{folder / 'pytorch_model.bin'}: " in error
    assert not [word for word in ("weights_only", "torch.load", "add_safe_globals") if word in error]
