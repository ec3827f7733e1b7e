"""Test constants of a checkpoint's own code that no file stores, which transformers 5 loses when it loads weights."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from support.checkpoints import copy_modules_to, write_json, write_modules
from support.cli import ok
from whiten import Encoder, WhitenError
from whiten_export.sources.describe.resolve import resolve
from whiten_export.sources.load.buffers import restore_buffers
from whiten_export.sources.load.network import load_config, load_network

HEAD = """
import torch
from torch import nn
from transformers import BertModel

class Scale(nn.Module):
    def __init__(self, width, persistent=False):
        super().__init__()
        self.register_buffer("inv_freq", FREQUENCIES, persistent=persistent)
        self.register_buffer("none", None, persistent=False)

    def forward(self, state):
        return state * self.inv_freq

class OwnModel(BertModel):
    def __init__(self, config, **options):
        super().__init__(config, **options)
        self.scale = SCALE
        self.post_init()

    def forward(self, *args, **options):
        output = super().forward(*args, **options)
        output.last_hidden_state = self.scale(output.last_hidden_state)
        if output.hidden_states is not None:
            output.hidden_states = tuple(self.scale(state) for state in output.hidden_states)
        return output
"""
"""Code of a network that multiplies each state by frequencies, as own code of jina-embeddings-v3 and GTE has them."""

FREQUENCIES = "1.0 / 10000 ** (torch.arange(width) / width)"
VARIANTS = {
    "frequencies": (FREQUENCIES, "Scale(config.hidden_size)"),
    "nested": (FREQUENCIES, "nn.Sequential(Scale(config.hidden_size))"),
    "by config": ("torch.full((width,), 0.5)", "Scale(config.intermediate_size // 2)"),
    "double": (f"({FREQUENCIES}).double().float()", "Scale(config.hidden_size)"),
    "ones": ("torch.ones(width)", "Scale(config.hidden_size)"),
}


def write_code(folder: Path, frequencies: str, scale: str) -> None:
    (folder / "modeling_own.py").write_text(HEAD.replace("FREQUENCIES", frequencies).replace("SCALE", scale))
    path = folder / "config.json"
    write_json(path, json.loads(path.read_text()) | {"auto_map": {"AutoModel": "modeling_own.OwnModel"}})


@pytest.fixture
def folder(checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkpoint of BERT."""
    copy_modules_to(tmp_path / "modules", monkeypatch)
    return Path(shutil.copytree(checkpoint("bert"), tmp_path / "own"))


def loaded(folder: Path) -> nn.Module:
    checkpoint = resolve(str(folder), remote_code=True)
    return load_network(checkpoint, load_config(checkpoint, True), True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_constants_are_those_of_the_code(folder: Path, variant: str) -> None:
    frequencies, scale = VARIANTS[variant]
    write_code(folder, frequencies, scale)
    network = loaded(folder)
    stored = {name: parameter.clone() for name, parameter in network.named_parameters()}
    restore_buffers(network)
    width = 32
    want = eval(frequencies, {"torch": torch, "width": width})
    (buffer,) = (buffer for name, buffer in network.named_buffers() if name.endswith("inv_freq"))
    torch.testing.assert_close(buffer, want)
    assert all(torch.equal(parameter, stored[name]) for name, parameter in network.named_parameters())


def test_buffers_of_transformers_own_classes_are_left(checkpoint: Callable[[str], Path]) -> None:
    network = loaded(checkpoint("bert"))
    before = {name: buffer.data_ptr() for name, buffer in network.named_buffers()}
    restore_buffers(network)
    assert {name: buffer.data_ptr() for name, buffer in network.named_buffers()} == before


@pytest.mark.slow
@pytest.mark.parametrize("published", [False, True])
def test_an_export_has_the_constants_of_the_code(folder: Path, tmp_path: Path, published: bool) -> None:
    write_code(folder, FREQUENCIES, "Scale(config.hidden_size)")
    if published:
        write_modules(folder, "Transformer", "Pooling")
        write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean", "word_embedding_dimension": 32})
    options = () if published else ("--layers", "-1", "--whitening", "none")
    ok("export", folder, *options, "--trust-remote-code", "--out", tmp_path / "with")
    config = json.loads((folder / "config.json").read_text())
    del config["auto_map"]
    write_json(folder / "config.json", config)
    (folder / "modeling_own.py").unlink()
    ok("export", folder, *options, "--out", tmp_path / "without")
    with Encoder(tmp_path / "with") as own, Encoder(tmp_path / "without") as stock:
        texts = ["the cat", "Wind and rain."]
        frequencies = 1 / 10000 ** (np.arange(32) / 32)
        np.testing.assert_allclose(own.encode(texts), stock.encode(texts) * frequencies, atol=1e-5)


@pytest.mark.skipif(transformers.__version__ < "5", reason="transformers 4 keeps constants")
def test_code_that_cannot_be_run_twice_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_code(folder, FREQUENCIES, "Scale(config.hidden_size)")
    network = loaded(folder)

    def fail(self: nn.Module, config: object) -> None:
        raise RuntimeError("only once")

    monkeypatch.setattr(type(network), "__init__", fail)
    with pytest.raises(WhitenError, match="OwnModel has constants that its files do not store, .* only once"):
        restore_buffers(network)
