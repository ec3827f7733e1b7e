"""Read how the authors of a folder make a vector: by sentence-transformers' `modules.json`, or as model2vec does.

Of a Router, the modules of one route are read. What is read and not understood is refused by its name.
"""

from collections.abc import Collection
from pathlib import Path, PurePath
from typing import Any, get_args

from whiten_export.proof.reference import Module, Normalize, Truncate
from whiten_export.sources.checkpoint import (
    MODULES_FILE,
    NETWORK_WEIGHTS,
    TRANSFORMER_CONFIGS,
    Authors,
    Step,
    module_weights,
    read_json,
    read_settings,
    tensor_names,
)
from whiten_export.sources.checks import TEXT_OF_CLIP
from whiten_runtime.bundle.manifest import Similarity, pooling_modes
from whiten_runtime.errors import UsageError, WhitenError, needing
from whiten_runtime.inference.options import TEXT

ROUTER_FILES = ("router_config.json", "config.json")
"""Names of the file with a Router's routes; an Asym's is named like a network's config."""

MODEL2VEC, _MODEL2VEC_LENGTH = "model2vec", 512
"""Type of network in configs of model2vec, and the number of tokens at which it cuts texts by default."""

INSTRUCTOR = ("hkunlp/instructor-base", "hkunlp/instructor-large", "hkunlp/instructor-xl")
"""Repositories whose pooling leaves the prompt out, which their files do not say: sentence-transformers knows them by
these names."""

_ROUTERS = ("Router", "Asym")

_OF_2019 = ("BERT", "RoBERTa", "DistilBERT", "ALBERT", "XLMRoBERTa", "XLNet", "CamemBERT", "T5")
"""Modules of sentence-transformers before 0.3, all of which became Transformer."""


def read_published(root: Path, route: str | None = None, leave_out: Collection[str] = ()) -> Authors:
    """Read `modules.json` and all that it names; the weights of the modules behind the network are loaded.

    Modules behind the pooling are left out by the names of their classes.
    """
    path, settings = root / MODULES_FILE, _read_model_settings(root)
    chosen, (first, *others) = _read_steps(root, route)
    settings |= _read_first(first, path)
    static = first.kind == "StaticEmbedding"
    modules: list[Module] = []
    files: list[Path] = []
    left_out: list[Step] = []
    for step in others:
        config, pooled = step.folder / "config.json", static or "pooling" in settings
        if pooled and step.name in leave_out:
            left_out.append(step)
            continue
        match step.kind:
            case "Dropout":
                continue
            case "Pooling" if not static and not modules:
                settings |= _read_pooling(config)
            case "WeightedLayerPooling" if not pooled and not modules:
                files.append(module_weights(step.folder))
                weights = _loader().load_layer_weights(step.folder)
                settings |= {"layers": tuple(weights), "layer_weights": tuple(weights.values())}
            case "Dense" | "LayerNorm":
                files.append(module_weights(step.folder))
                modules.append(_loader().load_module(step.kind, step.folder))
            case "Normalize":
                modules.append(_read_normalize(config))
            case _:
                way = f"; --leave-out {step.name} computes what follows on the vectors before it" if pooled else ""
                raise WhitenError(f"{path}: {_not_supported(step)}{way}")
    names = tuple(step.name for step in left_out)
    if missing := sorted(set(leave_out) - set(names)):
        raise UsageError(f"leave-out is {missing[0]}, but no module behind the pooling in {path} has this name")
    if not static and "pooling" not in settings:
        raise WhitenError(f"{path}: has no Pooling, so it gives no sentence vectors")
    if "layer_weights" in settings and "max" in pooling_modes(settings["pooling"]):
        raise WhitenError(f"{path}: pooling max after WeightedLayerPooling is not supported")
    if (dimension := settings.pop("truncate_dim")) is not None:
        modules.append(Truncate(dimension))
    normalize = bool(modules) and isinstance(modules[-1], Normalize)
    return Authors(
        stated_by="sentence-transformers",
        modules=tuple(modules[:-1] if normalize else modules),
        normalize=normalize,
        steps=(first, *(step for step in others if step not in left_out)),
        left_out=names,
        route=chosen,
        files=tuple(files),
        **settings,
    )


def read_model2vec(root: Path) -> Authors | None:
    """Read how a folder of model2vec without `modules.json` makes a vector; None for another folder."""
    config, weights = root / "config.json", root / NETWORK_WEIGHTS[0]
    if not config.is_file() or not weights.is_file():
        return None
    settings = read_settings(config)
    if settings.get("model_type", MODEL2VEC) != MODEL2VEC or "embeddings" not in tensor_names(weights):
        return None
    return Authors(
        stated_by="model2vec",
        normalize=bool(settings.get("normalize", False)),
        max_length=_number(settings.get("max_length", _MODEL2VEC_LENGTH)),
        steps=(Step("StaticEmbedding", root),),
    )


def _loader() -> Any:
    """Return what loads modules, which needs PyTorch; folders of ONNX graphs, a Pooling and a Normalize do not."""
    with needing("export"):
        from whiten_export.sources import sentence_transformers
    return sentence_transformers


def _read_steps(root: Path, route: str | None) -> tuple[str | None, list[Step]]:
    """Return the route and the modules in order, those of the route in place of a Router."""
    path = root / MODULES_FILE
    try:  # sentence-transformers applies modules in the order of the list, whatever their idx
        listed = [(step["type"], str(step.get("path", ""))) for step in read_json(path)]
    except (TypeError, KeyError, AttributeError):
        raise WhitenError(f"{path}: is not a list of modules with a type each; copy the model again") from None
    steps: list[Step] = []
    chosen: str | None = None
    for step in [_step(root, kind, folder, path) for kind, folder in listed]:
        if step.kind in _ROUTERS:
            chosen, inner = _read_route(root, step.folder, route)
            steps += inner
        else:
            steps.append(step)
    if route is not None and chosen is None and steps:
        raise UsageError(f"route '{route}' was asked for, but '{root}' has no Router; leave --route out")
    if not steps:
        what = "names no module" if chosen is None else f"route '{chosen}' has no module"
        raise WhitenError(f"{path}: {what}; wanted a Transformer and what follows it")
    return chosen, steps


def _not_supported(step: Step) -> str:
    if "." in step.kind:
        return f"module '{step.kind}' is not one of sentence-transformers, so its vectors cannot be reproduced"
    return f"module {step.kind} is not supported here, so nothing is exported"


def _step(root: Path, class_path: Any, folder: str, file: Path) -> Step:
    if PurePath(folder).is_absolute() or ".." in PurePath(folder).parts:
        raise WhitenError(f"{file}: the path '{folder}' leads out of the folder")
    known = str(class_path).startswith("sentence_transformers.")
    return Step(str(class_path).rsplit(".", 1)[-1] if known else str(class_path), root / folder)


def _read_route(root: Path, folder: Path, route: str | None) -> tuple[str, list[Step]]:
    """Return the route of a Router that was asked for, or its only one, and the modules of it."""
    names = (folder / name for name in ROUTER_FILES)
    path = next((path for path in names if path.is_file() and "structure" in read_settings(path)), None)
    if path is None:
        raise WhitenError(f"{folder}: the Router has no router_config.json; copy the model again")
    config = read_settings(path)
    try:
        routes = {
            name: [(config["types"][module], module) for module in modules]
            for name, modules in config["structure"].items()
        }
    except (TypeError, KeyError, AttributeError):
        raise WhitenError(
            f"{path}: its structure is not routes with modules of its types; copy the model again"
        ) from None
    chosen = route if route is not None or len(routes) != 1 else next(iter(routes))
    if chosen is None or chosen not in routes:
        asked = "" if chosen is None else f"; '{chosen}' is not among them"
        raise UsageError(f"'{root}' has the routes {', '.join(routes)}{asked}; export one of them with --route")
    return chosen, [_step(folder, kind, module, path) for kind, module in routes[chosen]]


def _read_first(step: Step, path: Path) -> dict[str, Any]:
    """Return `max_length` and `do_lower_case` of a Transformer, if it has them; nothing of a table."""
    if step.kind == "StaticEmbedding":
        return {}
    if "." in step.kind:
        raise WhitenError(f"{path}: {_not_supported(step)}")
    if step.kind != "Transformer":
        way = f"; {TEXT_OF_CLIP}" if step.kind == "CLIPModel" else ""
        if step.kind in _OF_2019:
            way = ": write sentence_transformers.models.Transformer, as it has been called since 2020"
        raise WhitenError(f"{path}: the first module is {step.kind}; wanted Transformer or StaticEmbedding{way}")
    config = next((file for name in TRANSFORMER_CONFIGS if (file := step.folder / name).is_file()), None)
    if config is None:
        return {}
    settings = read_settings(config)
    length, lower = settings.pop("max_seq_length", None), bool(settings.pop("do_lower_case", False))
    _check_transformer(settings, length, config)
    return {"max_length": _number(length), "do_lower_case": lower}


def _number(length: Any) -> int | None:
    return length if isinstance(length, int) and length > 0 else None


_MODES = {
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean_tokens": "weightedmean",
    "lasttoken": "last",
}
"""Poolings by their names in files, where `pooling_mode_` stands before them in older ones; in the order in which
several are concatenated."""

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

_HARMLESS_CALL = {"padding", "padding_side", "pad_to_multiple_of", "return_tensors", "return_attention_mask", "verbose"}
"""Arguments of the call of a tokenizer that change no vector: padding is masked."""

_STATES = ("forward", "last_hidden_state")
"""Method of a network, and its output, from which the vector of a text has to come."""


def _check_transformer(settings: dict[str, Any], length: Any, path: Path) -> None:
    """Refuse the settings that make another vector of a text than the network's last hidden state."""
    for name in _ARGUMENTS:
        arguments = _named(settings, name, path)
        same = {key for key in _SAME_AS_LENGTH if arguments.get(key) == length}
        if changing := arguments.keys() - _HARMLESS - same:
            raise WhitenError(f"{path}: {name} sets {min(changing)}, which is not supported")
    calls = _named(settings, "processing_kwargs", path)
    for name in ("common", "text"):
        arguments = _named(calls, name, path)
        same = {key for key, value in arguments.items() if _is_usual(key, value, length)}
        if changing := arguments.keys() - _HARMLESS_CALL - same:
            raise WhitenError(f"{path}: processing_kwargs sets {name}.{min(changing)}, which is not supported")
    modalities = _named(settings, "modality_config", path)
    if "message" in modalities:
        raise WhitenError(f"{path}: modality_config has message: texts go through a chat template, not supported here")
    text = _named(modalities, "text", path)
    if text and (text.get("method"), text.get("method_output_name")) != _STATES:
        raise WhitenError(f"{path}: a text's vectors come from {text}; wanted {' and '.join(_STATES)}")
    for name, usual in (("transformer_task", "feature-extraction"), ("module_output_name", "token_embeddings")):
        if (value := settings.get(name) or usual) != usual:
            raise WhitenError(f"{path}: {name} is '{value}'; wanted {usual}")
    known = {
        *_ARGUMENTS,
        "processing_kwargs",
        "modality_config",
        "transformer_task",
        "module_output_name",
        "unpad_inputs",
    }
    if unknown := [name for name, value in settings.items() if name not in known and value not in (None, {}, False)]:
        raise WhitenError(f"{path}: has the setting '{unknown[0]}', which is not supported")


def _is_usual(name: str, value: Any, length: Any) -> bool:
    """Return whether an argument of a tokenizer's call is what a Transformer of this `max_seq_length` passes anyway."""
    usual = {"truncation": (True, "longest_first"), "add_special_tokens": (True,), "max_length": (length,)}
    return name in usual and value in usual[name]


def _read_normalize(path: Path) -> Module:
    settings = read_settings(path) if path.is_file() else {}
    for name in ("module_input_name", "module_output_name"):
        if settings.get(name, "sentence_embedding") not in (None, "sentence_embedding"):
            raise WhitenError(f"{path}: {name} is '{settings[name]}'; wanted sentence_embedding")
    return Normalize()


def _read_pooling(path: Path) -> dict[str, Any]:
    """Return `pooling` and `include_prompt` of a Pooling."""
    settings = read_settings(path)
    for name in ("word_embedding_dimension", "embedding_dimension"):
        settings.pop(name, None)
    include_prompt = bool(settings.pop("include_prompt", True))
    modes = [mode for name, mode in _MODES.items() if settings.pop(f"pooling_mode_{name}", False)]
    named = settings.pop("pooling_mode", None)
    if named is not None:
        modes = [_MODES.get(str(mode), str(mode)) for mode in (named if isinstance(named, list) else [named])]
    if unknown := [mode for mode in modes if mode not in _MODES.values()] or list(settings):
        raise WhitenError(f"{path}: has '{unknown[0]}', which is not a pooling or a setting that is supported")
    if len(set(modes)) < len(modes):
        raise WhitenError(f"{path}: has the pooling '{'+'.join(modes)}'; wanted different ones")
    return {"pooling": "+".join(modes or ["mean"]), "include_prompt": include_prompt}


def _read_model_settings(root: Path) -> dict[str, Any]:
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
