"""Weights that are pickles with more than tensors in them: nothing of them runs, and the refusal is ours."""

import collections
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.checkpoints import save_checkpoint
from support.cli import invoke
from whiten_export.commands.export import export
from whiten_export.sources.networks.network import load_state
from whiten_runtime.errors import WhitenError

ADVICE = ("weights_only", "you trust", "torch.load", "load_url", "unsafe", "add_safe_globals", "allowlist", "pip")


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_checkpoint("bert", tmp_path / "model")


def with_pickle(checkpoint: Path, ran: Path, old: bool) -> None:
    """Put weights as `torch.save` writes them, and one object that is no tensor, in place of safetensors."""
    state = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    state["extra"] = Payload(ran)
    torch.save(state, checkpoint / "pytorch_model.bin", _use_new_zipfile_serialization=not old)


def refused_in_our_words(message: str) -> None:
    assert "holds more than weights" in message
    assert "posix.mkdir" in message
    assert "safetensors" in message
    for word in ADVICE:
        assert word not in message, word


@pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
def test_a_checkpoint(old: bool, checkpoint: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with_pickle(checkpoint, ran, old)
    out = tmp_path / "out"
    result = invoke(export, checkpoint, "--layers", 1, "--whitening", "none", "--out", out)
    assert not ran.exists()
    assert not out.exists()
    assert result.exit_code == 1, result.stderr
    refused_in_our_words(result.stderr)
    assert f"{checkpoint / 'pytorch_model.bin'}: " in result.stderr
    assert "unexpected" not in result.stderr


def test_objects_of_the_standard_library(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save({"linear.weight": torch.zeros(2, 2), "extra": collections.Counter("a"), "p": Path("x")}, file)
    with pytest.raises(WhitenError, match=r"holds more than weights: pathlib\.") as caught:
        load_state(file)
    for word in ADVICE:
        assert word not in str(caught.value), word
    torch.save([1, 2], file)
    with pytest.raises(WhitenError, match=r"is damaged, or no file of PyTorch weights"):
        load_state(file)
    file.unlink()
    with pytest.raises(WhitenError, match=r"cannot be read \(No such file or directory\)"):
        load_state(file)


def test_a_pickle_that_is_no_file_of_torch(tmp_path: Path) -> None:
    ran, file = tmp_path / "ran", tmp_path / "pytorch_model.bin"
    file.write_bytes(pickle.dumps(Payload(ran)))
    with pytest.raises(WhitenError) as caught:
        load_state(file)
    assert not ran.exists()
    for word in ADVICE:
        assert word not in str(caught.value), word


@pytest.mark.parametrize("content", [b"", b"nothing", b"\x80\x02.", b"PK\x03\x04"], ids=repr)
def test_a_damaged_file(content: bytes, checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(content)
    result = invoke(export, checkpoint, "--layers", 1, "--whitening", "none", "--out", tmp_path / "out")
    assert result.exit_code == 1, result.stderr
    assert f"{checkpoint / 'pytorch_model.bin'}: " in result.stderr
    assert "unexpected" not in result.stderr
    for word in ADVICE:
        assert word not in result.stderr, word


@pytest.mark.slow
def test_plain_weights_of_torch_are_taken(checkpoint: Path, tmp_path: Path) -> None:
    plain = Path(shutil.copytree(checkpoint, tmp_path / "plain"))
    torch.save(load_file(plain / "model.safetensors"), plain / "pytorch_model.bin")
    (plain / "model.safetensors").unlink()
    result = invoke(export, plain, "--layers", 1, "--whitening", "none", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
