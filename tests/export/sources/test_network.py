"""Test which weights of a checkpoint a network must take."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from whiten import WhitenError
from whiten_export.sources.checkpoints.checkpoint import Checkpoint
from whiten_export.sources.networks.network import load_network


@pytest.fixture(scope="module")
def gpt_neo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, torch.Tensor]], torch.nn.Module]:
    """Return a function that loads a small GPT-Neo from a checkpoint with more weights than it has."""
    config = transformers.GPTNeoConfig(
        vocab_size=20, hidden_size=8, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]]
    )
    folder: Path = tmp_path_factory.mktemp("gpt-neo")
    transformers.GPTNeoModel(config).save_pretrained(folder)
    own = load_file(folder / "model.safetensors")

    def load(more: dict[str, torch.Tensor]) -> torch.nn.Module:
        save_file(own | more, folder / "model.safetensors", metadata={"format": "pt"})
        return load_network(Checkpoint("gpt-neo", "gpt-neo", "transformers", folder, ()), config, False)

    return load


def test_constants_that_old_checkpoints_store_may_be_left(gpt_neo: Callable[..., torch.nn.Module]) -> None:
    masks = {"h.0.attn.attention.bias": torch.ones(1), "h.0.attn.attention.masked_bias": torch.ones(1)}
    assert gpt_neo(masks).h[0].attn.attention.out_proj.bias is not None  # type: ignore[index, union-attr]


@pytest.mark.parametrize("name", ["h.2.ln_1.weight", "transformer.h.0.attn.attention.distance.weight"])
def test_weights_of_the_network_may_not_be_left(gpt_neo: Callable[..., torch.nn.Module], name: str) -> None:
    with pytest.raises(WhitenError, match=f"does not take 1 weights of this gpt_neo network, such as '{name}'"):
        gpt_neo({name: torch.ones(1)})


@pytest.mark.parametrize("name", ["lm_head.weight", "score.weight", "other.weight"])
def test_heads_may_be_left(gpt_neo: Callable[..., torch.nn.Module], name: str) -> None:
    gpt_neo({name: torch.ones(1)})
