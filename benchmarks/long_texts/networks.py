"""Make networks of random weights in the shapes of published models."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.workloads import minilm

POSITIONS = 8192


@dataclass(frozen=True)
class Network:
    """Describes a network of random weights, of base size where it does not say otherwise."""

    kind: str  # type in transformers
    layers: int  # number of layers of the published model
    settings: dict[str, Any]
    tokens: int = POSITIONS  # maximum number of tokens


NETWORKS = {
    network.kind: network
    for network in (
        Network("modernbert", 22, {"reference_compile": False}),
        Network("bert", 12, {}),
        # bge-m3's positions
        Network("xlm-roberta", 12, {"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1}),
        # EmbeddingGemma's layers
        Network(
            "gemma3_text",
            24,
            {
                "hidden_size": 768,
                "intermediate_size": 1152,
                "num_attention_heads": 3,
                "num_key_value_heads": 1,
                "head_dim": 256,
                "sliding_window": 512,
                "use_bidirectional_attention": True,
            },
            tokens=2048,
        ),
        # layers of Qwen3-Embedding-0.6B
        Network(
            "qwen3",
            28,
            {
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "use_sliding_window": False,
            },
        ),
    )
}
"""Networks by their type in transformers."""


def network_of(name: str) -> Network:
    """Return the network of KIND, or KIND:LAYERS with another number of layers."""
    kind, _, layers = name.partition(":")
    network = NETWORKS[kind]
    return replace(network, layers=int(layers)) if layers else network


def checkpoint(network: Network, folder: Path) -> Path:
    """Write a network of random weights with the tokenizer of all-MiniLM-L6-v2, and return its folder."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm(), model_max_length=network.tokens)
    settings = {
        "num_hidden_layers": network.layers,
        "max_position_embeddings": network.tokens,
        "vocab_size": len(tokenizer),
        **{f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep", "bos", "eos")},
        **network.settings,
    }
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model(network.kind, **settings)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
