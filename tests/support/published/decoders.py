"""Networks of published models that were decoders, and others with positions by rotation."""

from typing import Any

from support.published.networks import SIZE, Network

_DECODER = {
    "hidden_act": "silu",
    "hidden_size": SIZE,
    "intermediate_size": SIZE,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
}
_LLAMA_IDS = {"bos_token_id": "<s>", "eos_token_id": "</s>"}
_QWEN_IDS = {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|endoftext|>"}


def mistral() -> Network:
    """Return Mistral, which attends to the last 16 tokens only; its weights are in several files."""
    config = {
        **_DECODER,
        "architectures": ["MistralModel"],
        "model_type": "mistral",
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 16,
        "tie_word_embeddings": False,
    }
    return Network(config, _LLAMA_IDS | {"pad_token_id": "</s>"}, shard="200KB")


def llama() -> Network:
    """Return LLaMA with its head, as language models are saved."""
    config = {
        **_DECODER,
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
    }
    return Network(config, _LLAMA_IDS | {"pad_token_id": "<unk>"}, saved_as="LlamaForCausalLM")


def qwen2(**more: Any) -> Network:
    """Return Qwen2 with its head and the names of its own code, which is not in the folder."""
    config = {
        **_DECODER,
        "architectures": ["Qwen2ForCausalLM"],
        "auto_map": {
            "AutoModel": "modeling_qwen.Qwen2Model",
            "AutoModelForCausalLM": "modeling_qwen.Qwen2ForCausalLM",
        },
        "max_position_embeddings": 131072,
        "model_type": "qwen2",
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "tie_word_embeddings": False,
        **more,
    }
    return Network(config, _QWEN_IDS, saved_as="Qwen2ForCausalLM", shard="200KB")


def qwen3(layers: int, dtype: str = "float32") -> Network:
    """Return Qwen3, whose heads are together wider than its hidden state."""
    config = {
        **_DECODER,
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 32,
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
    }
    return Network(config, _QWEN_IDS, dtype=dtype)


def gemma3() -> Network:
    """Return EmbeddingGemma's network: Gemma 3 that looks both ways, two blocks of three not far."""
    config = {
        **_DECODER,
        "_sliding_window_pattern": 6,
        "architectures": ["Gemma3TextModel"],
        "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "max_position_embeddings": 2048,
        "model_type": "gemma3_text",
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 48,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0,
        "sliding_window": 16,
        "use_bidirectional_attention": True,
    }
    del config["hidden_act"]
    return Network(config, {f"{name}_token_id": f"<{name}>" for name in ("bos", "eos", "pad")})


def gpt2() -> Network:
    """Return GPT-2."""
    config = {
        "activation_function": "gelu_new",
        "architectures": ["GPT2Model"],
        "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2",
        "n_embd": SIZE,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 64,
    }
    return Network(config, _QWEN_IDS)


def nomic_bert() -> Network:
    """Return NomicBERT."""
    config = {
        "architectures": ["NomicBertModel"],
        "hidden_act": "silu",
        "hidden_size": SIZE,
        "intermediate_size": SIZE,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 2048,
        "model_type": "nomic_bert",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
        "type_vocab_size": 2,
    }
    return Network(config, {"pad_token_id": "[PAD]"})


def jina_embeddings() -> Network:
    """Return the network of jina-embeddings-v3, without its adapters."""
    config = {
        "architectures": ["JinaEmbeddingsV3Model"],
        "hidden_act": "gelu",
        "hidden_size": SIZE,
        "intermediate_size": SIZE,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 8194,
        "model_type": "jina_embeddings_v3",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"},
        "type_vocab_size": 1,
    }
    return Network(config, {"pad_token_id": "<pad>", "bos_token_id": "<s>", "eos_token_id": "</s>"})
