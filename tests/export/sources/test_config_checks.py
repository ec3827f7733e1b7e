"""Test that a config.json with settings that transformers' class does not read is refused by the setting's name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from support.checkpoints import copy_modules_to, random_network, rotary, write_json
from whiten import WhitenError
from whiten_export.sources.network import load_config, load_network
from whiten_export.sources.pytorch import PyTorchModel
from whiten_export.sources.resolve import resolve

NOMIC = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_inner": 64, "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000}
NOMIC_ONLY = {
    "activation_function": "swiglu",
    "prenorm": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "num_experts": 0,
}
GTE = {"position_embedding_type": "rope", "layer_norm_type": "layer_norm", "logn_attention_scale": False}
"""Settings that the authors' own code reads, with the values of nomic-embed-text-v1.5 and arctic-embed-m-v2."""


@pytest.fixture
def changed(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a family's checkpoint and changes settings of its config.json."""

    def get(family: str, **changes: object) -> Path:
        folder = Path(shutil.copytree(checkpoint(family), tmp_path / family))
        content = json.loads((folder / "config.json").read_text("utf-8"))
        write_json(folder / "config.json", content | changes)
        return folder

    return get


def load(folder: Path) -> Any:
    found = resolve(str(folder))
    return load_network(found, load_config(found, False), False)[0]


def refused(folder: Path) -> str:
    with pytest.raises(WhitenError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("family", "settings"), [("nomic_bert", NOMIC | NOMIC_ONLY), ("gte", GTE)])
def test_settings_of_own_code_that_agree_are_taken(
    changed: Callable[..., Path], family: str, settings: dict[str, object]
) -> None:
    assert load(changed(family, **settings))


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("nomic_bert", {"rotary_emb_base": 10000}),
        ("nomic_bert", {"rotary_scaling_factor": 2}),
        ("nomic_bert", {"activation_function": "geglu"}),
        ("nomic_bert", {"num_experts": 8}),
        ("gte", {"logn_attention_scale": True}),
        ("gte", {"position_embedding_type": "absolute"}),
    ],
)
def test_settings_of_own_code_that_are_not_read_are_refused(
    changed: Callable[..., Path], family: str, settings: dict[str, object]
) -> None:
    known = NOMIC | NOMIC_ONLY if family == "nomic_bert" else GTE
    message = refused(changed(family, **known | settings))
    ((name, value),) = settings.items()
    assert f"{name} is {value!r}" in message


def test_a_kind_of_rotary_embeddings_that_is_not_known_is_named(changed: Callable[..., Path]) -> None:
    """Such as that of gte-multilingual-base, for which its own code is needed."""
    folder = changed("llama", **rotary(rope_theta=20000.0, rope_type="ntk", factor=8.0))
    assert "'ntk'" in refused(folder)


def both_directions(folder: Path, trust: bool = False) -> bool:
    """Load a network as an export does, and return whether the first token attends to the second."""
    network = PyTorchModel(resolve(str(folder)), trust, "cpu")._network(False)
    ids = torch.tensor([[7, 8], [7, 9]])
    first = network(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[:, 0]
    return not torch.equal(first[0], first[1])


def test_a_decoder_whose_tokens_attend_to_later_ones_is_loaded_so(changed: Callable[..., Path]) -> None:
    folder = changed("qwen2", is_causal=False)
    assert both_directions(folder)
    shutil.rmtree(folder)
    assert not both_directions(changed("qwen2"))


def test_an_architecture_that_does_not_read_is_causal_is_refused(changed: Callable[..., Path]) -> None:
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 48, "vocab_size": 300}
    folder = changed("gpt2")
    config = transformers.AutoConfig.for_model(
        "gpt_neo", **sizes, attention_types=[[["global"], 2]], bos_token_id=0, eos_token_id=0, is_causal=False
    )
    (folder / "model.safetensors").unlink()
    random_network(config, noise=0.3).save_pretrained(folder)
    with pytest.raises(WhitenError, match="is_causal to False"):
        both_directions(folder)


def test_a_decoder_that_takes_the_setting_of_gemma_is_refused(changed: Callable[..., Path]) -> None:
    """As voyage-4-nano's config.json has it for its own code."""
    with pytest.raises(WhitenError, match="use_bidirectional_attention to True"):
        both_directions(changed("qwen3", use_bidirectional_attention=True))


BIDIRECTIONAL = """
from transformers import LlamaModel

class OwnModel(LlamaModel):
    def __init__(self, config):
        super().__init__(config)
        for layer in self.layers:
            layer.self_attn.is_causal = False

    def _update_causal_mask(self, attention_mask, *arguments, **named):
        return None
"""
"""Code as that of llama-nemotron-embed and LLM2Vec, whose method for the mask transformers calls no longer."""


def test_own_code_whose_mask_is_not_taken_is_refused(
    changed: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_modules_to(tmp_path / "modules", monkeypatch)
    folder = changed("llama", auto_map={"AutoModel": "modeling_own.OwnModel"})
    (folder / "modeling_own.py").write_text(BIDIRECTIONAL)
    with pytest.raises(WhitenError, match="is_causal to False"):
        both_directions(folder, trust=True)
    mended = BIDIRECTIONAL.replace(
        "super().__init__(config)", "super().__init__(config)\n        config.is_causal = False"
    )
    (folder / "modeling_own.py").write_text(mended)
    assert both_directions(folder, trust=True)
    beside = BIDIRECTIONAL.replace("for layer in self.layers:", "for layer in self.layers[:1]:")
    (folder / "modeling_own.py").write_text(beside)  # as of images in a network that is causal
    assert not both_directions(folder, trust=True)


PROJECTING = """
from torch import nn
from transformers import LlamaModel

class OwnModel(LlamaModel):
    def __init__(self, config):
        super().__init__(config)
        self.linear = nn.Linear(config.hidden_size, 16, bias=False)

    def forward(self, *arguments, **named):
        output = super().forward(*arguments, **named)
        output.last_hidden_state = self.linear(output.last_hidden_state)
        return output
"""


def test_own_code_that_projects_its_states_is_refused(
    changed: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_modules_to(tmp_path / "modules", monkeypatch)
    folder = changed("llama", auto_map={"AutoModel": "modeling_own.OwnModel"}, is_causal=False)
    (folder / "modeling_own.py").write_text(PROJECTING)
    weights = load_file(folder / "model.safetensors") | {"linear.weight": torch.ones(16, 32)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(WhitenError, match="32 to 16"):
        both_directions(folder, trust=True)
