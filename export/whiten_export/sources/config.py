"""Say what follows from a network's config: what identifies it, its positions, its attention, its number of weights."""

import hashlib
import inspect
import json
import re
from collections.abc import Collection
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from whiten_export.sources.checkpoint import ADAPTER_CONFIG, TRANSFORMER_CONFIGS, Checkpoint, read_settings
from whiten_export.sources.families import positions_before
from whiten_export.sources.model import WeightCounts
from whiten_export.sources.network import UNUSED, network_class, quiet
from whiten_export.sources.own_code import imported_files, split_repository

_OTHER_SETTINGS = frozenset(
    (
        *("architectures", "auto_map", "finetuning_task", "license", "model_name", "name_or_path", "tokenizer_class"),
        *("adapter_transformers_version", "transformers_version", "transformers.js_config"),
        *("attn_implementation", "dtype", "gradient_checkpointing", "torch_dtype", "torchscript", "use_cache"),
        *("bos_token_id", "cls_token_id", "decoder_start_token_id", "eos_token_id", "sep_token_id"),
        *("forced_bos_token_id", "forced_eos_token_id"),
        *("id2label", "label2id", "num_labels", "problem_type", "task_specific_params"),
        *("initializer_factor", "initializer_range", "output_attentions", "output_hidden_states", "return_dict"),
    )
)
"""Settings of `config.json` that no hidden state depends on, as those that begin with "_". All others count."""

_OTHER_SETTINGS_OF_ADAPTERS = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "peft_version", "revision"),
        "task_type",
    )
)
"""Settings of `adapter_config.json` that no hidden state depends on: where the base is, and how it was trained."""


def network_sha256(
    checkpoint: Checkpoint, config: Any, classes: Collection[str], first_position: int | None, trust_remote_code: bool
) -> tuple[str, str]:
    """Compute the SHA-256 of a network's config, its adapter's and its own code: all that decides besides weights.

    Settings count where they differ from the defaults of the class that reads them, so that a folder keeps its hash
    when another version of transformers or peft reads it and saves it again.

    Args:
        checkpoint: files of the network.
        config: its config, as transformers reads it.
        classes: classes of transformers, such as "AutoModel", in whose place code of the checkpoint runs.
        first_position: number of positions before that of the first token; None where the architecture is not known.
            There, and with code of its own, a network may do more with the id of the padding token, which counts then.
        trust_remote_code: whether code of the checkpoint may run.

    Returns:
        The hash, and that by the former rule, over all settings as `config.json` spells them.
    """
    settings = read_settings(checkpoint.directory / "config.json")
    references = settings.get("auto_map") or {}
    code = {name: reference for name in classes if isinstance(reference := references.get(name), str)}
    files = {hashlib.sha256(file.read_bytes()).hexdigest() for file in imported_files(checkpoint, code.values())}
    adapter = None if checkpoint.adapter is None else read_settings(checkpoint.adapter / ADAPTER_CONFIG)

    def hashed(config: dict[str, Any], adapter: dict[str, Any] | None) -> str:
        if first_position is not None and not code:
            config.pop("pad_token_id", None)
        content = {
            **({} if adapter is None else {"adapter": adapter}),
            "config": config,
            "first_position": first_position,
            "classes": {name: split_repository(reference)[1] for name, reference in code.items()},
            "code": sorted(files),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    return (
        hashed(
            _changed_settings(config, bool(code), trust_remote_code),
            None if adapter is None else _changed_settings_of_adapter(adapter),
        ),
        hashed(_canonical(settings), None if adapter is None else _canonical_adapter(adapter)),
    )


def _changed_settings(config: Any, own_code: bool, trust_remote_code: bool) -> dict[str, Any]:
    """Return the settings of a network that differ from their defaults, or that its class does not know but reads."""
    settings, usual = _canonical(config.to_dict()), _defaults(type(config))
    unknown = settings.keys() - usual.keys() if usual and not own_code else set()
    unread = unknown - _read_names(unknown, config, trust_remote_code) if unknown else set()
    used = {name: value for name, value in settings.items() if name not in unread}
    return {"model_type": config.model_type, **_difference(used, usual)}


def _defaults(kind: Any) -> dict[str, Any]:
    try:
        defaults: dict[str, Any] = _canonical(kind().to_dict())
    except Exception:  # a class that needs arguments, or own code
        return {}
    return defaults


def _difference(settings: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """Return what is other than usual, at any depth; what is usual and not there is null."""
    changed = dict[str, Any].fromkeys(usual.keys() - settings.keys())
    for name, value in settings.items():
        if name not in usual or usual[name] != value:
            both = isinstance(value, dict) and isinstance(usual.get(name), dict)
            changed[name] = _difference(value, usual[name]) if both else value
    return changed


def _read_names(names: Collection[str], config: Any, trust_remote_code: bool) -> set[str]:
    """Return those of some names that stand in the code by which transformers computes a network."""
    network = _without_weights(transformers.AutoModel, config, trust_remote_code)
    if network is None:
        return set(names)
    package = Path(transformers.__file__).parent
    files = {Path(inspect.getfile(type(module))) for module in network.modules()}
    own = {file for file in files if file.is_relative_to(package)}
    words = set[str]()
    for file in (*own, *package.glob("*.py"), *package.glob("integrations/*.py")):
        words.update(_NAME.findall(file.read_text("utf-8")))
    return words & set(names)


_NAME = re.compile(r"\w+")


def _canonical(value: Any) -> Any:
    """Return settings without those that decide nothing, at any depth, and whole numbers as such."""
    if isinstance(value, dict):
        return {
            name: _canonical(inner)
            for name, inner in value.items()
            if name not in _OTHER_SETTINGS and not name.startswith("_")
        }
    if isinstance(value, list | tuple):
        return [_canonical(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _changed_settings_of_adapter(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an adapter that differ from peft's defaults; peft ignores those that it does not know."""
    try:
        from peft import PEFT_TYPE_TO_CONFIG_MAPPING
    except ImportError:  # the adapter is refused when it is merged
        return settings
    kinds: dict[Any, Any] = PEFT_TYPE_TO_CONFIG_MAPPING
    kind = kinds.get(settings.get("peft_type"))
    usual = {} if kind is None else _canonical_adapter(kind().to_dict())
    used = {name: value for name, value in _canonical_adapter(settings).items() if not usual or name in usual}
    return _difference(usual | used, usual)


def _canonical_adapter(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an adapter that decide something; names of modules have no order."""
    named = {name: value for name, value in settings.items() if name not in _OTHER_SETTINGS_OF_ADAPTERS}
    canonical: dict[str, Any] = _canonical(
        {name: sorted(value) if _are_names(value) else value for name, value in named.items()}
    )
    return canonical


def _are_names(value: Any) -> bool:
    return isinstance(value, list | set) and all(isinstance(one, str) for one in value)


def empty_positions(config: Any, trust_remote_code: bool) -> int:
    """Return the number of positions before that of the first token: those up to the padding id, where there is one."""
    network = _without_weights(transformers.AutoModel, config, trust_remote_code)
    if network is None:
        return positions_before(config)
    tables = (module for name, module in network.named_modules() if name.rpartition(".")[2] in _POSITION_TABLES)
    learned = (table for table in tables if isinstance(getattr(table, "weight", None), nn.Parameter))
    paddings = (getattr(table, "padding_idx", None) for table in learned)
    return max((padding + 1 for padding in paddings if padding is not None), default=0)


def has_positions(config: Any, trust_remote_code: bool) -> bool:
    """Return whether a network has a table of positions: numbers of which there are more with each further position.

    Rotary embeddings and relative positions are for any number of tokens, whatever the config says of positions. A
    network that cannot be made here counts as having a table.
    """
    shapes = []
    for more in (0, 1):
        longer = deepcopy(config)
        longer.max_position_embeddings += more
        network = _without_weights(transformers.AutoModel, longer, trust_remote_code)
        if network is None:
            return True
        tensors = (*network.parameters(), *network.buffers())
        shapes.append([tensor.shape for tensor in tensors if tensor.is_floating_point()])
    sizes = (pair for one, other in zip(*shapes, strict=False) for pair in zip(one, other, strict=False))
    return any(after - before == 1 for before, after in sizes)


_POSITION_TABLES = ("position_embeddings", "embed_positions")
"""Names that tables of learned positions have in networks."""


def _without_weights(factory: Any, config: Any, trust_remote_code: bool) -> nn.Module | None:
    """Return a network whose weights have shapes and no numbers; None for one that cannot be made so."""
    options = {"trust_remote_code": trust_remote_code} if hasattr(factory, "from_config") else {}
    try:
        with quiet(), torch.device("meta"):
            network = getattr(factory, "from_config", factory)(deepcopy(config), **options)
    except Exception:  # code of unknown networks; those that do not load at all are refused when their weights are
        return None
    assert isinstance(network, nn.Module)
    return network


_BLOCK = 12
"""Weights of a block of a usual network over the square of its width: attention has 4, and what follows it 8."""


def count_weights(checkpoint: Checkpoint, config: Any, trust_remote_code: bool, highest: int) -> WeightCounts:
    """Count the weights of a network by its config: all, and those without the blocks above a layer and without heads.

    Where the network cannot be made, all blocks count as usual ones.
    """
    layers = config.num_hidden_layers
    network = _without_weights(network_class(checkpoint, config), config, trust_remote_code)
    if network is None:
        table, block = config.vocab_size * config.hidden_size, _BLOCK * config.hidden_size**2
        return WeightCounts(table + layers * block, table + highest * block)
    stacks = [
        f"{name}." for name, one in network.named_modules() if isinstance(one, nn.ModuleList) and len(one) == layers
    ]
    total = exported = 0
    for name, parameter in network.named_parameters():
        total += parameter.numel()
        stack = next((stack for stack in stacks if name.startswith(stack)), None)  # the outer one comes first
        if not UNUSED.search(name) and (stack is None or int(name.removeprefix(stack).split(".")[0]) < highest):
            exported += parameter.numel()
    return WeightCounts(total, exported, 0 if _is_fused(network) else getattr(config, "num_attention_heads", 0))


def _is_fused(network: nn.Module) -> bool:
    """Return whether attention needs no scores of all pairs of tokens, as PyTorch's does where no bias is added."""
    biased = hasattr(network.config, "relative_attention_num_buckets")
    return bool(getattr(network, "_supports_sdpa", False)) and not biased


def plain_attention(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the argument that puts plain attention in place of a kernel that a model's files ask for, if they do."""
    folders = {checkpoint.directory, checkpoint.adapter or checkpoint.directory}
    names = ("config.json", *TRANSFORMER_CONFIGS)
    files = (path for folder in folders for name in names if (path := folder / name).is_file())
    return {"attn_implementation": "eager"} if any(_names_kernel(read_settings(path)) for path in files) else {}


def _names_kernel(settings: object) -> bool:
    """Return whether settings name another attention than PyTorch's own, such as flash_attention_2, at any depth."""
    if not isinstance(settings, dict):
        return False
    return any(
        _names_kernel(value) or (name.endswith("attn_implementation") and value not in (None, "eager", "sdpa"))
        for name, value in settings.items()
    )
