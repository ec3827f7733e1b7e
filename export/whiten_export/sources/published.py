"""Read how a folder of sentence-transformers makes a vector; what is read and not understood is refused by its name."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, get_args

from whiten_export.proof.reference import Module, Normalize, Truncate
from whiten_export.sources.files import NETWORK_WEIGHTS, module_weights, read_json, read_settings, tensor_names
from whiten_runtime.bundle.records import Pooling, Similarity, pooling_modes
from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.inference.options import TEXT

MODULES_FILE = "modules.json"

ROUTER_FILES = ("router_config.json", "config.json")
"""Names of the file with a Router's routes; an Asym's is named like a network's config."""

CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the file with a Transformer's length and casing; older versions named it after the architecture."""

MODEL2VEC, _MODEL2VEC_LENGTH = "model2vec", 512
"""Type of network in configs of model2vec, and the number of tokens at which it cuts texts by default."""

INSTRUCTOR = ("hkunlp/instructor-base", "hkunlp/instructor-large", "hkunlp/instructor-xl")
"""Repositories whose pooling leaves the prompt out, which their files do not say: sentence-transformers knows them by
these names."""

_WEIGHTED = ("Dense", "LayerNorm", "WeightedLayerPooling")
_ROUTERS = ("Router", "Asym")


TEXT_OF_CLIP = (
    "save its network of texts alone, CLIPTextModel.from_pretrained(MODEL).save_pretrained(FOLDER) of transformers, "
    "and export that folder; a bundle has no projection, so its vectors are not those that CLIP compares with images"
)
"""Says what to do with CLIP, which embeds images too."""

_OF_2019 = ("BERT", "RoBERTa", "DistilBERT", "ALBERT", "XLMRoBERTa", "XLNet", "CamemBERT", "T5")
"""Modules of sentence-transformers before 0.3, all of which became Transformer."""


@dataclass(frozen=True)
class Stored(Module):
    """Names a module whose weights are not loaded yet."""

    kind: str  # name of its class
    folder: Path  # folder of its files


@dataclass(frozen=True)
class Published:
    """How a folder of sentence-transformers makes a vector."""

    network: Path  # folder of the network, or of the table of a static embedding
    steps: tuple["Step", ...] = ()  # all modules in order, those of the chosen route in place of a Router
    static: bool = False  # whether it is a static embedding: a table of token vectors, and their mean
    pooling: Pooling = "mean"  # pooling over the tokens
    include_prompt: bool = True  # whether the tokens of a prompt take part in the pooling
    layer_pooling: Path | None = None  # folder of a WeightedLayerPooling; None if only the last layer is used
    # first layer of a weighted average of the layers; None until it is loaded, and without one
    first_layer: int | None = None
    layer_weights: tuple[float, ...] | None = None  # weights of the layers from that one on
    modules: tuple[Module, ...] = ()  # modules after the pooling, without a last Normalize; `Stored` until loaded
    normalize: bool = False  # whether vectors are divided by their L2 norm at the end
    prompts: Mapping[str, str] = field(default_factory=dict)  # prompts by name
    default_prompt_name: str | None = None  # name of the prompt that texts get if none is asked for
    similarity_fn_name: Similarity = "cosine"  # similarity of two vectors
    max_seq_length: int | None = None  # maximum number of tokens of a text; None if the folder does not say
    do_lower_case: bool = False  # whether texts are lower-cased before they are tokenised
    without_unknown: bool = False  # whether unknown tokens are left out of the mean, as model2vec leaves them
    route: str | None = None  # route of its Router; None without one
    files: tuple[Path, ...] = ()  # weight files of the modules

    @property
    def loaded(self) -> bool:
        """Return whether the weights of the modules and of the layers are here."""
        layers = self.layer_pooling is None or self.layer_weights is not None
        return layers and not any(isinstance(module, Stored) for module in self.modules)


@dataclass(frozen=True)
class Step:
    kind: str  # name of its class, without the class's place, which moved between versions
    folder: Path  # folder of its files


def read_published(root: Path, route: str | None = None) -> Published:
    """Read `modules.json` and all that it names."""
    path, settings = root / MODULES_FILE, read_model_settings(root)
    chosen, steps = _steps(root, route)
    published = replace(_first(path, steps[0]), route=chosen)
    pooled = published.static
    for step in steps[1:]:
        published = _with(published, step, pooled, path)
        pooled = pooled or step.kind == "Pooling"
    if not pooled:
        raise WhitenError(f"{path}: has no Pooling, so it gives no sentence vectors")
    if published.layer_pooling is not None and "max" in pooling_modes(published.pooling):
        raise WhitenError(f"{path}: pooling max after WeightedLayerPooling is not supported")
    if (dimension := settings.pop("truncate_dim")) is not None:
        published = replace(published, modules=(*published.modules, Truncate(dimension)))
    if published.modules and isinstance(published.modules[-1], Normalize):
        published = replace(published, modules=published.modules[:-1], normalize=True)
    return replace(published, steps=tuple(steps), **settings)


def read_model2vec(root: Path) -> Published | None:
    """Read how a folder of model2vec without `modules.json` makes a vector; None for another folder."""
    config, weights = root / "config.json", root / NETWORK_WEIGHTS[0]
    if not config.is_file() or not weights.is_file():
        return None
    settings = read_settings(config)
    if settings.get("model_type", MODEL2VEC) != MODEL2VEC or "embeddings" not in tensor_names(weights):
        return None
    return Published(
        root,
        static=True,
        normalize=bool(settings.get("normalize", False)),
        max_seq_length=settings.get("max_length", _MODEL2VEC_LENGTH),
        without_unknown=True,
        files=(weights,),
    )


def _steps(root: Path, route: str | None) -> tuple[str | None, list[Step]]:
    """Return the route and the modules in order, those of the route in place of a Router."""
    path = root / MODULES_FILE
    try:  # sentence-transformers applies modules in the order of the list, whatever their idx
        listed = [(step["type"], str(step.get("path", ""))) for step in read_json(path)]
    except (TypeError, KeyError, AttributeError):
        raise WhitenError(f"{path}: is not a list of modules with a type each; copy the model again") from None
    steps = [_step(root, kind, folder, path) for kind, folder in listed]
    if not steps:
        raise WhitenError(f"{path}: names no module; wanted a Transformer and what follows it")
    if route is not None and not any(step.kind in _ROUTERS for step in steps):
        raise UsageError(f"route '{route}' was asked for, but '{root}' has no Router; leave --route out")
    modules: list[Step] = []
    chosen: str | None = None
    for step in steps:
        if step.kind in _ROUTERS:
            chosen, inner = _route(root, step.folder, route)
            modules += inner
        else:
            modules.append(step)
    if not modules:
        raise WhitenError(f"{path}: route '{chosen}' has no module")
    return chosen, modules


def _step(root: Path, class_path: Any, folder: str, file: Path) -> Step:
    if not str(class_path).startswith("sentence_transformers."):
        raise WhitenError(
            f"{file}: module '{class_path}' is not one of sentence-transformers, so its vectors cannot be reproduced"
        )
    if PurePath(folder).is_absolute() or ".." in PurePath(folder).parts:
        raise WhitenError(f"{file}: the path '{folder}' leads out of the folder")
    return Step(str(class_path).rsplit(".", 1)[-1], root / folder)


def _route(root: Path, folder: Path, route: str | None) -> tuple[str, list[Step]]:
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


def _first(path: Path, step: Step) -> Published:
    if step.kind == "StaticEmbedding":
        return Published(step.folder, static=True, files=(module_weights(step.folder),))
    if step.kind != "Transformer":
        way = f"; {TEXT_OF_CLIP}" if step.kind == "CLIPModel" else ""
        if step.kind in _OF_2019:
            way = ": write sentence_transformers.models.Transformer, as it has been called since 2020"
        raise WhitenError(f"{path}: the first module is {step.kind}; wanted Transformer or StaticEmbedding{way}")
    config = next((step.folder / name for name in CONFIGS if (step.folder / name).is_file()), None)
    if config is None:
        return Published(step.folder)
    settings = read_settings(config)
    length, lower = settings.pop("max_seq_length", None), bool(settings.pop("do_lower_case", False))
    check_transformer(settings, length, config)
    return Published(step.folder, max_seq_length=length, do_lower_case=lower)


def _with(published: Published, step: Step, pooled: bool, path: Path) -> Published:
    """Return what the modules so far and one more give."""
    if step.kind == "Dropout":
        return published
    if step.kind == "Pooling" and not published.static and not published.modules:
        return replace(published, **read_pooling(step.folder / "config.json"))
    early = step.kind == "WeightedLayerPooling"
    if step.kind not in (*_WEIGHTED, "Normalize") or (early and (pooled or published.modules)):
        raise WhitenError(f"{path}: module {step.kind} is not supported here, so nothing is exported")
    if step.kind == "Normalize":
        return replace(published, modules=(*published.modules, read_normalize(step.folder / "config.json")))
    files = (*published.files, module_weights(step.folder))
    if early:
        return replace(published, layer_pooling=step.folder, files=files)
    return replace(published, modules=(*published.modules, Stored(step.kind, step.folder)), files=files)


def way_to_text(settings: Mapping[str, Any]) -> str:
    """Return what to do about a network of texts and something else, such as CLIP; an empty string for another one."""
    if "text_config" not in settings:
        return ""
    if settings.get("model_type") == "clip":
        return f": {TEXT_OF_CLIP}"
    return ": save its network of texts alone, by transformers, and export that folder"


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
