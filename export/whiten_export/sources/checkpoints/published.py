"""Read how a folder of sentence-transformers makes a vector: its modules, its prompts and their settings.

Everything that is read and not understood is an error with its name: a module left out would change every vector.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from whiten_export.proof.reference import Module, Normalize, Truncate
from whiten_export.sources.checkpoints.module_files import (
    read_dense,
    read_layer_norm,
    read_layer_weights,
    read_settings,
    weight_file,
)
from whiten_export.sources.checkpoints.steps import MODULES_FILE, Step, read_steps
from whiten_runtime.bundle.records import Pooling, Similarity, pooling_modes
from whiten_runtime.errors import WhitenError
from whiten_runtime.inference.prompts import TEXT

_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the file with a Transformer's length and casing; older versions named it after the architecture."""

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
}
"""Arguments of a Transformer that change how a vector is computed, not which."""


@dataclass(frozen=True)
class Published:
    """Describes how a folder of sentence-transformers makes a vector."""

    network: Path  # folder of the network, or of the table of a static embedding
    static: bool = False  # whether it is a static embedding: a table of token vectors, and their mean
    pooling: Pooling = "mean"  # pooling over the tokens
    include_prompt: bool = True  # whether the tokens of a prompt take part in the pooling
    # first layer of a weighted average of the layers; None if only the last layer is used
    first_layer: int | None = None
    layer_weights: tuple[float, ...] | None = None  # weights of the layers from that one on
    modules: tuple[Module, ...] = ()  # modules after the pooling, without a last Normalize
    normalize: bool = False  # whether vectors are divided by their L2 norm at the end
    prompts: Mapping[str, str] = field(default_factory=dict)  # prompts by name
    default_prompt_name: str | None = None  # name of the prompt that texts get if none is asked for
    similarity_fn_name: Similarity = "cosine"  # similarity of two vectors
    max_seq_length: int | None = None  # maximum number of tokens of a text; None if the folder does not say
    do_lower_case: bool = False  # whether texts are lower-cased before they are tokenised
    route: str | None = None  # route of its Router; None without one
    files: tuple[Path, ...] = ()  # weight files of the modules


def read_published(root: Path, route: str | None = None) -> Published:
    """Read `modules.json` and all that it names."""
    chosen, steps = read_steps(root, route)
    published = replace(_first(root, steps[0]), route=chosen)
    pooled = published.static
    for step in steps[1:]:
        published = _with(published, step, pooled, root)
        pooled = pooled or step.kind == "Pooling"
    if not pooled:
        raise WhitenError(f"{root / MODULES_FILE}: has no Pooling, so it gives no sentence vectors")
    if published.first_layer is not None and "max" in pooling_modes(published.pooling):
        raise WhitenError(f"{root / MODULES_FILE}: pooling max after WeightedLayerPooling is not supported")
    settings = _settings(root)
    if (kept := settings.pop("truncate_dim")) is not None:
        published = replace(published, modules=(*published.modules, Truncate(kept)))
    if published.modules and isinstance(published.modules[-1], Normalize):
        published = replace(published, modules=published.modules[:-1], normalize=True)
    return replace(published, **settings)


def _first(root: Path, step: Step) -> Published:
    if step.kind == "StaticEmbedding":
        return Published(step.folder, static=True, files=(weight_file(step.folder),))
    if step.kind != "Transformer":
        raise WhitenError(
            f"{root / MODULES_FILE}: the first module is {step.kind}; wanted Transformer or StaticEmbedding"
        )
    path = next((step.folder / name for name in _CONFIGS if (step.folder / name).is_file()), None)
    settings = {} if path is None else read_settings(path)
    length = settings.pop("max_seq_length", None)
    lower = bool(settings.pop("do_lower_case", False))
    _check_transformer(settings, path)
    return Published(step.folder, max_seq_length=length, do_lower_case=lower)


def _check_transformer(settings: dict[str, Any], path: Path | None) -> None:
    for name in _ARGUMENTS:
        if changing := [key for key in _named(settings, name, path) if key not in _HARMLESS]:
            raise WhitenError(f"{path}: {name} sets {changing[0]}, which is not supported")
        settings.pop(name, None)
    task = settings.pop("transformer_task", "feature-extraction")
    if task != "feature-extraction":
        raise WhitenError(f"{path}: transformer_task is '{task}'; wanted feature-extraction")
    modalities = _named(settings, "modality_config", path)
    if "message" in modalities:
        raise WhitenError(f"{path}: modality_config has message: texts go through a chat template, not supported here")
    text = _named(modalities, "text", path)
    settings.pop("modality_config", None)
    if text and (text.get("method"), text.get("method_output_name")) != ("forward", "last_hidden_state"):
        raise WhitenError(f"{path}: a text's vectors come from {text}; wanted last_hidden_state of forward")
    output = settings.pop("module_output_name", None) or "token_embeddings"
    if output != "token_embeddings":
        raise WhitenError(f"{path}: module_output_name is '{output}'; wanted token_embeddings")
    settings.pop("unpad_inputs", None)
    if unknown := [name for name, value in settings.items() if value not in (None, {}, False)]:
        raise WhitenError(f"{path}: has the setting '{unknown[0]}', which is not supported")


def _with(published: Published, step: Step, pooled: bool, root: Path) -> Published:
    """Return what the modules so far and one more give."""
    if step.kind == "Dropout":
        return published
    if step.kind == "Pooling" and not published.static and not published.modules:
        return replace(published, **_pooling(step.folder / "config.json"))
    files: tuple[Path, ...]
    if step.kind == "WeightedLayerPooling" and not pooled and not published.modules:
        first, weights, files = read_layer_weights(step.folder)
        return replace(published, first_layer=first, layer_weights=weights, files=published.files + files)
    module: Module
    if step.kind == "Dense":
        module, files = read_dense(step.folder)
    elif step.kind == "LayerNorm":
        module, files = read_layer_norm(step.folder)
    elif step.kind == "Normalize":
        module, files = _normalize(step.folder), ()
    else:
        raise WhitenError(f"{root / MODULES_FILE}: module {step.kind} is not supported here, so nothing is exported")
    return replace(published, modules=(*published.modules, module), files=published.files + files)


def _normalize(folder: Path) -> Module:
    path = folder / "config.json"
    settings = read_settings(path) if path.is_file() else {}
    for name in ("module_input_name", "module_output_name"):
        if settings.get(name, "sentence_embedding") not in (None, "sentence_embedding"):
            raise WhitenError(f"{path}: {name} is '{settings[name]}'; wanted sentence_embedding")
    return Normalize()


def _pooling(path: Path) -> dict[str, Any]:
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


def _settings(root: Path) -> dict[str, Any]:
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
    if default is not None and not (isinstance(default, str) and default in prompts):
        if default not in ("query", "document"):
            raise WhitenError(f"{path}: default_prompt_name is '{default}', which is not one of its prompts")
        default = None
    similarity = settings.get("similarity_fn_name") or "cosine"
    if similarity == "dot_score":
        similarity = "dot"
    if similarity not in get_args(Similarity):
        raise WhitenError(f"{path}: similarity_fn_name is '{similarity}'; wanted {', '.join(get_args(Similarity))}")
    kept = settings.get("truncate_dim")
    if kept is not None and (isinstance(kept, bool) or not isinstance(kept, int) or kept < 1):
        raise WhitenError(f"{path}: truncate_dim is {kept!r}; wanted a whole number of at least 1")
    return {
        "prompts": prompts,
        "default_prompt_name": default,
        "similarity_fn_name": similarity,
        "truncate_dim": kept,
    }


def _named(settings: dict[str, Any], name: str, path: Path | None) -> dict[str, Any]:
    """Return a setting that holds others by name; an empty one where it is missing."""
    value = settings.get(name) or {}
    if not isinstance(value, dict):
        raise WhitenError(f"{path}: {name} is {value!r}; wanted settings by name")
    return value
