"""Test what transformers 5 takes from networks of own code when it loads weights: constants, and weights themselves."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from support.checkpoints import copy_modules_to, save_checkpoint, write_json, write_modules
from support.cli import ok
from whiten import Encoder, WhitenError
from whiten_export.sources.network import load_config, load_network
from whiten_export.sources.own_code import restore_buffers
from whiten_export.sources.resolve import resolve

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
    "by config": ("torch.full((width,), 0.5)", "Scale(config.intermediate_size // 2)"),
}


def write_code(folder: Path, frequencies: str, scale: str) -> None:
    (folder / "modeling_own.py").write_text(HEAD.replace("FREQUENCIES", frequencies).replace("SCALE", scale))
    path = folder / "config.json"
    write_json(path, json.loads(path.read_text()) | {"auto_map": {"AutoModel": "modeling_own.OwnModel"}})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkpoint of BERT, of one layer."""
    copy_modules_to(tmp_path / "modules", monkeypatch)
    return save_checkpoint("bert", tmp_path / "own", num_hidden_layers=1)


OVERWRITING = """
import torch
from torch import nn
from transformers import BertModel

class Norm(nn.LayerNorm):
    def __init__(self, width):
        super().__init__(width)
        self.register_buffer("scale", torch.full((1,), 0.5), persistent=False)

    def forward(self, state):
        return super().forward(state) * self.scale

class OwnModel(BertModel):
    def __init__(self, config, **options):
        super().__init__(config, **options)
        self.norm = Norm(config.hidden_size)
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=self.config.initializer_range)
            if isinstance(module, nn.Linear):
                module.bias.data.fill_(float("nan"))
        elif isinstance(module, nn.LayerNorm):
            module.weight.data.fill_(1.0)
            module.bias.data.zero_()

    def forward(self, *args, **options):
        output = super().forward(*args, **options)
        output.last_hidden_state = self.norm(output.last_hidden_state)
        if output.hidden_states is not None:
            output.hidden_states = (*output.hidden_states[:-1], output.last_hidden_state)
        return output
"""
"""Code that writes to `weight.data`, as older copies of transformers' classes do; one module has a constant.

Biases that no file has are NaN, which they are by chance where the code leaves them as memory was.
"""


@pytest.fixture
def overwriting(folder: Path) -> Path:
    write_code(folder, "", "")
    (folder / "modeling_own.py").write_text(OVERWRITING)
    torch.manual_seed(1)
    weights = load_file(folder / "model.safetensors")
    weights |= {f"norm.{name}": torch.randn(32) for name in ("weight", "bias")}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", ["safetensors", "bin", "prefix", "half", "no pooler", "optional pooler", "tensorflow"])
def test_weights_that_the_code_writes_over_are_those_of_the_file(overwriting: Path, kind: str) -> None:
    path = overwriting / "model.safetensors"
    want = stored = {name: weight.clone() for name, weight in load_file(path).items()}  # not those of a mapped file
    if kind == "half":
        want = stored = {name: weight.half() for name, weight in stored.items()}
    elif kind == "prefix":
        stored = {f"bert.{name}": weight for name, weight in stored.items()}
    elif kind in ("no pooler", "optional pooler"):
        want = stored = {name: weight for name, weight in stored.items() if not name.startswith("pooler.")}
    elif kind == "tensorflow":
        stored = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): weight
            for name, weight in stored.items()
        }
    if kind == "optional pooler":  # transformers then leaves it out of its report
        ignoring = OVERWRITING.replace("BertModel):", 'BertModel):\n    _keys_to_ignore_on_load_missing = ["pooler"]\n')
        (overwriting / "modeling_own.py").write_text(ignoring)
    if kind == "bin":
        torch.save(stored, overwriting / "pytorch_model.bin")
        path.unlink()
    else:
        save_file(stored, path, {"format": "pt"})
    got = loaded(overwriting).state_dict()
    assert all(torch.equal(got[name], weight.float()) for name, weight in want.items())


def test_weights_that_cannot_be_compared_with_the_file_are_refused(
    overwriting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where transformers renames weights in a way that is not known here."""
    monkeypatch.setattr("whiten_export.sources.own_code._RENAMED", {})
    path = overwriting / "model.safetensors"
    older = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): one for name, one in load_file(path).items()}
    save_file(older, path, {"format": "pt"})
    with pytest.raises(WhitenError, match="3 weights, such as 'embeddings.LayerNorm.weight'"):
        loaded(overwriting)


def loaded(folder: Path) -> nn.Module:
    checkpoint = resolve(str(folder), remote_code=True)
    return load_network(checkpoint, load_config(checkpoint, True), True)[0]


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


def test_code_that_cannot_be_run_twice_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_code(folder, FREQUENCIES, "Scale(config.hidden_size)")
    network = loaded(folder)

    def fail(self: nn.Module, config: object) -> None:
        raise RuntimeError("only once")

    monkeypatch.setattr(type(network), "__init__", fail)
    with pytest.raises(WhitenError, match="OwnModel .* only once"):
        restore_buffers(network)


@pytest.mark.slow
def test_an_export_compares_with_the_weights_of_the_file(overwriting: Path, tmp_path: Path) -> None:
    write_modules(overwriting, "Transformer", "Pooling")
    write_json(overwriting / "1_Pooling" / "config.json", {"pooling_mode": "mean", "word_embedding_dimension": 32})
    result = ok("export", overwriting, "--trust-remote-code", "--out", tmp_path / "out")
    assert "equals sentence-transformers" in result.stderr + result.stdout
