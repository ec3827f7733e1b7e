"""Convert a checkpoint of transformers 5 to GGUF in float32, and compute it by llama.cpp on the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

GRAPH = "network.gguf"
ARCHITECTURES = {"gemma3_text": "gemma-embedding", "modernbert": "modern-bert", "qwen3": "qwen3"}
"""Architectures of llama.cpp by the type in transformers; the other networks are "bert"."""


def export(folder: Path) -> None:
    """Write the network without its tokenizer: llama.cpp gets token ids."""
    import gguf
    from transformers import AutoModel

    network: Any = AutoModel.from_pretrained(folder)
    config = network.config.to_dict()
    kind = config["model_type"]
    first = config["pad_token_id"] + 1 if kind == "xlm-roberta" else 0  # position of the first token
    architecture = ARCHITECTURES.get(kind, "bert")
    writer = gguf.GGUFWriter(folder / GRAPH, architecture)
    writer.add_context_length(config["max_position_embeddings"] - first)
    write_settings(writer, config)
    (number,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    for name, tensor in network.state_dict().items():
        if "position_embeddings" in name:
            tensor = tensor[first:]
        if kind == "gemma3_text" and name.endswith("norm.weight"):
            tensor = tensor + 1
        if target := names.get_name(name, (".weight", ".bias")):  # BERT's pooler has none
            writer.add_tensor(target, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_settings(writer: Any, config: dict[str, Any]) -> None:
    """Write what llama.cpp reads of a configuration of transformers."""
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    epsilon = next(config[name] for name in ("rms_norm_eps", "layer_norm_eps", "norm_eps") if name in config)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_token_type_count(config.get("type_vocab_size", 1))
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_eps(epsilon)
    writer.add_layer_norm_rms_eps(epsilon)
    writer.add_causal_attention(config["model_type"] == "qwen3")
    if rotary := config.get("rope_parameters"):
        writer.add_rope_freq_base(rotary.get("full_attention", rotary)["rope_theta"])
        if "sliding_attention" in rotary:
            writer.add_rope_freq_base_swa(rotary["sliding_attention"]["rope_theta"])
    if window := config.get("local_attention") or config.get("sliding_window"):
        writer.add_sliding_window(window)


def load(folder: Path, longest: int) -> Callable[[str], NDArray[np.float32]]:
    """Load the network with flash attention, whose keys and values are float16. Of qwen3 it computes logits too."""
    import llama_cpp
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=longest)
    model = llama_cpp.llama_model_load_from_file(str(folder / GRAPH).encode(), llama_cpp.llama_model_default_params())
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = longest
    settings.n_threads = settings.n_threads_batch = torch.get_num_threads()
    settings.embeddings = True
    settings.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_MEAN
    settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
    context = llama_cpp.llama_init_from_model(model, settings)
    width = llama_cpp.llama_model_n_embd(model)

    def encode(text: str) -> NDArray[np.float32]:
        ids = tokenizer([text], truncation=True, max_length=longest)["input_ids"][0]
        if memory := llama_cpp.llama_get_memory(context):
            llama_cpp.llama_memory_clear(memory, True)
        tokens = (llama_cpp.llama_token * len(ids))(*ids)  # the batch points to it
        if code := llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, len(ids))):
            raise RuntimeError(f"llama_decode returns {code}")
        vector: NDArray[np.float32] = np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_seq(context, 0), (width,))
        return vector.copy()

    return encode
