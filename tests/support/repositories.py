"""Repositories of the catalogue's embedding models: the files that each has on the hub, with small random networks.

`lay_out` turns a folder that sentence-transformers writes today into what the authors' repository holds: names of
files, `modules.json` of sentence-transformers 2, `auto_map`, names of weights, and what lies beside the model.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from support.checkpoints import OLD, write_json, write_tensors
from whiten_models.catalogue import Entry

NO_FOLDER = ("specter", "simcse", "unsup-simcse", "angle-bert", "angle-llama")
"""Entries whose repositories have a network alone; tests/parity/test_tuned_systems.py exports them."""

_WITHOUT_LENGTH = ("qwen3-embedding-0.6b", "qwen3-embedding-4b")
"""Entries without sentence_bert_config.json."""

_PICKLED = ("bge-m3",)
"""Entries whose weights are pytorch_model.bin alone."""

_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
_OF_MODE = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken", "lasttoken": "lasttoken"}

NOMIC_CODE = "nomic-ai/nomic-bert-2048"


def lay_out(entry: Entry, folder: Path) -> Path:
    """Rewrite the folder of an entry, and return it."""
    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    for module in modules:
        module["type"] = OLD + module["type"].rsplit(".", 1)[-1]
        if module["type"].endswith(".Pooling"):
            _write_old_pooling(folder / module["path"] / "config.json", entry)
    write_json(folder / "modules.json", modules)
    if entry.source == "transformers":
        for path in folder.glob("sentence_*_config.json"):
            length = json.loads(path.read_text("utf-8")).get("max_seq_length")
            path.unlink()
            if entry.name not in _WITHOUT_LENGTH and entry.model_type != "t5":
                write_json(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
    _write_versions(folder / "config_sentence_transformers.json", entry)
    write_json(folder / "onnx" / "config.json", {})
    (folder / "onnx" / "model.onnx").write_bytes(b"not wanted")
    (folder / "README.md").write_text("---\nlicense: other\n---\n# Model\n")
    if entry.name in _PICKLED:
        import torch

        torch.save(_torch(load_file(folder / "model.safetensors")), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    _SPECIAL.get(entry.name, lambda folder: None)(folder)
    return folder


def _write_old_pooling(path: Path, entry: Entry) -> None:
    now = json.loads(path.read_text("utf-8"))
    width = now.get("word_embedding_dimension", now.get("embedding_dimension"))
    old: dict[str, Any] = {f"pooling_mode_{mode}": _OF_MODE[entry.pooling] == mode for mode in _MODES}
    write_json(path, {"word_embedding_dimension": width} | old | {"include_prompt": now.get("include_prompt", True)})


def _write_versions(path: Path, entry: Entry) -> None:
    """Write versions, and the prompts of those that keep them here: of the others the catalogue alone knows them."""
    own = entry.prompts if entry.name in ("embeddinggemma", "qwen3-embedding-0.6b", "arctic-m", "arctic-l-v2") else {}
    versions = {"sentence_transformers": "2.7.0", "transformers": "4.41.2", "pytorch": "2.3.0+cu121"}
    write_json(path, {"__version__": versions, "prompts": dict(own), "default_prompt_name": None})


def _torch(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _bge_m3(folder: Path) -> None:
    """Add the heads for sparse and for multi-vector search, which its own library FlagEmbedding applies."""
    import torch

    width = json.loads((folder / "config.json").read_text("utf-8"))["hidden_size"]
    torch.save({"weight": torch.zeros(1, width), "bias": torch.zeros(1)}, folder / "sparse_linear.pt")
    torch.save({"weight": torch.zeros(width, width), "bias": torch.zeros(width)}, folder / "colbert_linear.pt")


def _nomic(folder: Path) -> None:
    """Give the code's repository in `auto_map`, GPT-2's names of settings, and the code's names of weights."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    classes = {"AutoConfig": "configuration_hf_nomic_bert.NomicBertConfig"}
    classes |= {"AutoModel": "modeling_hf_nomic_bert.NomicBertModel"}
    classes |= {"AutoModelForMaskedLM": "modeling_hf_nomic_bert.NomicBertForPreTraining"}
    config |= {"auto_map": {name: f"{NOMIC_CODE}--{place}" for name, place in classes.items()}}
    config |= {"n_embd": config["hidden_size"], "n_layer": config["num_hidden_layers"], "rotary_emb_base": 1000}
    write_json(folder / "config.json", config)
    weights = load_file(folder / "model.safetensors")
    renamed = {}
    for name, tensor in weights.items():
        if "q_proj" in name:
            parts = [weights[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            name, tensor = name.replace("self_attn.q_proj", "attn.Wqkv"), np.concatenate(parts)
        elif "k_proj" in name or "v_proj" in name:
            continue
        for now, then in _NOMIC_NAMES:
            name = name.replace(now, then)
        renamed[name] = tensor
    write_tensors(folder / "model.safetensors", renamed)


_NOMIC_NAMES = (
    ("embeddings.LayerNorm", "emb_ln"),
    ("self_attn.o_proj", "attn.out_proj"),
    ("up_proj", "fc11"),
    ("gate_proj", "fc12"),
    ("down_proj", "fc2"),
    ("post_attention_layernorm", "norm1"),
    ("post_mlp_layernorm", "norm2"),
)
"""Names of weights in transformers, and in the code of nomic's authors."""


def _potion(folder: Path) -> None:
    """Write model2vec's files: the table under `embeddings`, and a config.json without a type of network."""
    table = load_file(folder / "model.safetensors")["embedding.weight"]
    write_tensors(folder / "model.safetensors", {"embeddings": table})
    settings = {"model_type": "model2vec", "architectures": ["StaticModel"], "tokenizer_name": "baai/bge-base-en-v1.5"}
    write_json(folder / "config.json", settings | {"normalize": True, "apply_pca": 256, "apply_zipf": True})


def _instructor(folder: Path) -> None:
    """Let the pooling not say that it leaves the prompt out."""
    path = folder / "1_Pooling" / "config.json"
    settings = json.loads(path.read_text("utf-8"))
    assert settings.pop("include_prompt") is False
    write_json(path, settings)


_SPECIAL: dict[str, Callable[[Path], None]] = {
    "bge-m3": _bge_m3,
    "instructor": _instructor,
    "nomic-v1.5": _nomic,
    "potion": _potion,
}
