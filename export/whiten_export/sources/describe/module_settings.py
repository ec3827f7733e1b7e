"""Read the settings of modules of sentence-transformers; those that would give other vectors are refused by name."""

from pathlib import Path
from typing import Any, get_args

from whiten_export.proof.reference import Module, Normalize
from whiten_export.sources.describe.files import read_settings
from whiten_runtime.bundle.records import Similarity
from whiten_runtime.errors import WhitenError
from whiten_runtime.inference.options import TEXT

_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
"""Poolings by their key in older files, in the order in which several are concatenated."""

_MODE_NAMES = {"mean_sqrt_len_tokens": "mean_sqrt_len", "lasttoken": "last"}
"""Poolings that newer files call by another name than here."""

_ARGUMENTS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
"""Settings of a Transformer that hold arguments for transformers, by their older and newer names."""

_HARMLESS = {
    *("attn_implementation", "torch_dtype", "dtype", "add_pooling_layer", "unpad_inputs", "use_safetensors"),
    *("use_memory_efficient_attention", "low_cpu_mem_usage", "use_fast", "trust_remote_code", "use_cache"),
    *("device_map", "max_memory", "offload_folder", "offload_state_dict", "cache_dir", "local_files_only", "token"),
    "padding_side",
}
"""Arguments of a Transformer that change how or where a vector is computed, not which."""

_SAME_AS_LENGTH = ("model_max_length", "max_length")
"""Arguments of a tokenizer that change nothing where they equal the Transformer's `max_seq_length`."""

_STATES = ("forward", "last_hidden_state")
"""Method of a network, and its output, from which the vector of a text has to come."""


def check_transformer(settings: dict[str, Any], length: Any, path: Path) -> None:
    """Refuse the settings that make another vector of a text than the network's last hidden state."""
    for name in _ARGUMENTS:
        arguments = _named(settings, name, path)
        same = {key for key in _SAME_AS_LENGTH if arguments.get(key) == length}
        if changing := arguments.keys() - _HARMLESS - same:
            raise WhitenError(f"{path}: {name} sets {min(changing)}, which is not supported")
    modalities = _named(settings, "modality_config", path)
    if "message" in modalities:
        raise WhitenError(f"{path}: modality_config has message: texts go through a chat template, not supported here")
    text = _named(modalities, "text", path)
    if text and (text.get("method"), text.get("method_output_name")) != _STATES:
        raise WhitenError(f"{path}: a text's vectors come from {text}; wanted {' and '.join(_STATES)}")
    for name, usual in (("transformer_task", "feature-extraction"), ("module_output_name", "token_embeddings")):
        if (value := settings.get(name) or usual) != usual:
            raise WhitenError(f"{path}: {name} is '{value}'; wanted {usual}")
    known = {*_ARGUMENTS, "modality_config", "transformer_task", "module_output_name", "unpad_inputs"}
    if unknown := [name for name, value in settings.items() if name not in known and value not in (None, {}, False)]:
        raise WhitenError(f"{path}: has the setting '{unknown[0]}', which is not supported")


def read_normalize(path: Path) -> Module:
    """Read the settings of a Normalize."""
    settings = read_settings(path) if path.is_file() else {}
    for name in ("module_input_name", "module_output_name"):
        if settings.get(name, "sentence_embedding") not in (None, "sentence_embedding"):
            raise WhitenError(f"{path}: {name} is '{settings[name]}'; wanted sentence_embedding")
    return Normalize()


def read_pooling(path: Path) -> dict[str, Any]:
    """Return `pooling` and `include_prompt` of a Pooling."""
    settings = read_settings(path)
    for name in ("word_embedding_dimension", "embedding_dimension"):
        settings.pop(name, None)
    include_prompt = bool(settings.pop("include_prompt", True))
    modes = [mode for key, mode in _MODES.items() if settings.pop(key, False)]
    named = settings.pop("pooling_mode", None)
    if named is not None:
        modes = [_MODE_NAMES.get(str(mode), str(mode)) for mode in (named if isinstance(named, list) else [named])]
    if unknown := [mode for mode in modes if mode not in _MODES.values()] or list(settings):
        raise WhitenError(f"{path}: has '{unknown[0]}', which is not a pooling or a setting that is supported")
    if len(set(modes)) < len(modes):
        raise WhitenError(f"{path}: has the pooling '{'+'.join(modes)}'; wanted different ones")
    return {"pooling": "+".join(modes or ["mean"]), "include_prompt": include_prompt}


def read_model_settings(root: Path) -> dict[str, Any]:
    """Return prompts, similarity and truncation from `config_sentence_transformers.json`."""
    path = root / "config_sentence_transformers.json"
    settings = read_settings(path) if path.is_file() else {}
    kind = settings.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise WhitenError(f"{path}: model_type is '{kind}'; wanted SentenceTransformer")
    prompts = {name: "" if text is None else text for name, text in _named(settings, "prompts", path).items()}
    for name, text in prompts.items():
        if not isinstance(text, str):
            raise WhitenError(f"{path}: prompt '{name}' is {text!r}; wanted a text")
        if TEXT in text:
            raise WhitenError(f"{path}: prompt '{name}' contains {TEXT}, which here is the place of the text")
    default = settings.get("default_prompt_name")
    if default in ("query", "document") and default not in prompts:
        default = None  # sentence-transformers adds these two, empty
    if default not in (None, *prompts):
        raise WhitenError(f"{path}: default_prompt_name is '{default}', which is not one of its prompts")
    similarity = settings.get("similarity_fn_name") or "cosine"
    similarity = "dot" if similarity == "dot_score" else similarity
    if similarity not in get_args(Similarity):
        raise WhitenError(f"{path}: similarity_fn_name is '{similarity}'; wanted {', '.join(get_args(Similarity))}")
    dimension = settings.get("truncate_dim")
    if dimension is not None and (isinstance(dimension, bool) or not isinstance(dimension, int) or dimension < 1):
        raise WhitenError(f"{path}: truncate_dim is {dimension!r}; wanted a whole number of at least 1")
    names = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
    return dict(zip(names, (prompts, default, similarity, dimension), strict=True))


def _named(settings: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    """Return a setting that holds others by name; an empty one where it is missing."""
    value = settings.get(name) or {}
    if not isinstance(value, dict):
        raise WhitenError(f"{path}: {name} is {value!r}; wanted settings by name")
    return value
