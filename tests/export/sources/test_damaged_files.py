"""Test that a damaged file of a checkpoint is named in one line, before the network is traced."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load, save

from support.cli import invoke
from support.families import WIDTH
from whiten_export.commands.export import export

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
DAMAGED = "model.safetensors: is damaged, or no file of safetensors (Error while deserializing header: "

CASES: list[tuple[str, Change, str]] = [
    (WEIGHTS, lambda content: b"", DAMAGED),
    (WEIGHTS, lambda content: b"version https://git-lfs.github.com/spec/v1\n", f"{DAMAGED}header too large)"),
    (WEIGHTS, lambda content: content[: len(content) // 2], f"{DAMAGED}incomplete metadata, file not fully covered)"),
    (WEIGHTS, lambda content: content[:100], DAMAGED),
    (WEIGHTS, header(lambda found: found[WEIGHT].update(data_offsets=[0, 4])), DAMAGED),
    (WEIGHTS, header(lambda found: found[WEIGHT].update(dtype="F99")), f"{DAMAGED}invalid JSON in header: unknown"),
    (WEIGHTS, header(lambda found: found[WEIGHT].update(dtype="F16")), DAMAGED),
    (
        WEIGHTS,
        header(lambda found: found[WEIGHT].update(dtype="I32")),
        f"model.safetensors: '{WEIGHT}' holds I32; wanted",
    ),
    (WEIGHTS, weight(np.nan), f"model.safetensors: '{WEIGHT}' holds NaN or infinity; copy the model again"),
    (WEIGHTS, weight(-np.inf), f"model.safetensors: '{WEIGHT}' holds NaN or infinity; copy the model again"),
    (CONFIG, lambda content: b"{", "config.json"),
    (CONFIG, lambda content: b"[]", "transformers cannot load"),
    (CONFIG, lambda content: b"[" * 100_000, "transformers cannot load"),
    (CONFIG, fields(lambda found: found.update(hidden_size="x")), "transformers cannot load"),
    (
        CONFIG,
        fields(lambda found: found.update(vocab_size=10**9)),
        "weights have other shapes than its config.json says; copy both again",
    ),
    (TOKENIZER, lambda content: b"{", "transformers cannot load"),
    (TOKENIZER, split_at("("), "transformers cannot load"),
    (TOKENIZER, fields(without_unknown), "[UNK]"),
    (
        TOKENIZER,
        fields(lambda found: found["model"]["vocab"].update(zzzz=90_000)),
        "its tokenizer has ids up to 90000, but the embeddings have ",
    ),
]


@pytest.fixture(scope="module")
def whole(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a `tokenizer.json`."""
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path_factory.mktemp("whole") / "tiny-bert"))
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("name", "change", "words"), CASES)
def test_it_is_named(
    name: str, change: Change, words: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.onnx, "export", None)
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    result = invoke(export, folder, "--layers", 1, "--whitening", "none", "--out", tmp_path / "out")
    assert result.exit_code == 1, result.stderr
    error = result.stderr.splitlines()[-1]
    assert error.startswith("error: ")
    assert words in error
    assert "unexpected" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
def test_whole_numbers_in_a_file_of_pytorch(
    old: bool, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.onnx, "export", None)
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    state = {name: torch.from_numpy(array) for name, array in load((folder / WEIGHTS).read_bytes()).items()}
    state[WEIGHT] = state[WEIGHT].to(torch.int8)
    (folder / WEIGHTS).unlink()
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not old)
    result = invoke(export, folder, "--layers", 1, "--whitening", "none", "--out", tmp_path / "out")
    assert result.exit_code == 1, result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"error: {folder / 'pytorch_model.bin'}: '{WEIGHT}' holds INT8; ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_of_a_module(value: float, tmp_path: Path) -> None:
    from support.checkpoints import write_json
    from whiten_export.sources.networks.sentence_transformers import load_module
    from whiten_runtime.errors import WhitenError

    write_json(tmp_path / "config.json", {"in_features": WIDTH, "out_features": 2, "bias": False})
    file = tmp_path / "model.safetensors"
    file.write_bytes(save({"linear.weight": np.full((2, WIDTH), value, np.float32)}))
    with pytest.raises(WhitenError) as caught:
        load_module("Dense", tmp_path)
    assert str(caught.value).startswith(f"{file}: 'linear.weight' holds NaN or infinity")


@pytest.mark.parametrize("content", ["[]", "5", "[" * 100_000, ""], ids=["list", "number", "deep", "empty"])
def test_config_of_an_onnx_encoder(content: str, tmp_path: Path) -> None:
    from whiten_export.sources.checkpoints.checkpoint import Checkpoint
    from whiten_export.sources.onnx_encoder import OnnxEncoder
    from whiten_runtime.errors import WhitenError

    (tmp_path / "config.json").write_text(content)
    with pytest.raises(WhitenError) as caught:
        OnnxEncoder(Checkpoint("model", "model", "onnx", tmp_path, (tmp_path / "model.onnx",)))
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: ")
