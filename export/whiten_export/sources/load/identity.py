"""Identify a network by what decides its numbers besides the weights: its config, and its own Python code that runs."""

import hashlib
import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import dynamic_module_utils

from whiten_export.sources.describe.checkpoint import Checkpoint
from whiten_export.sources.describe.settings import read_settings
from whiten_export.sources.describe.weights import ADAPTER_CONFIG

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

WITHOUT_UNKNOWN = hashlib.sha256(b"unknown tokens are left out").hexdigest()
"""Identity of a table of token vectors whose unknown tokens are left out of the mean, as model2vec does."""


def network_sha256(checkpoint: Checkpoint, classes: Collection[str], first_position: int | None) -> str:
    """Compute the SHA-256 of a network's config, its adapter's and its own code: all that decides besides weights.

    The settings are those of `config.json`, not those that transformers completes: these change with its version.

    Args:
        checkpoint: files of the network.
        classes: classes of transformers, such as "AutoModel", in whose place code of the checkpoint runs.
        first_position: number of positions before that of the first token; None where the architecture is not known.
            There, and with code of its own, a network may do more with the id of the padding token, which counts then.
    """
    settings = read_settings(checkpoint.directory / "config.json")
    references = settings.get("auto_map") or {}
    code = {name: reference for name in classes if isinstance(reference := references.get(name), str)}
    config = _canonical(settings)
    if first_position is not None and not code:
        config.pop("pad_token_id", None)
    adapter = {} if checkpoint.adapter is None else {"adapter": _of_adapter(checkpoint.adapter)}
    content = {
        **adapter,
        "config": config,
        "first_position": first_position,
        "classes": {name: reference.rpartition("--")[2] for name, reference in code.items()},
        "code": sorted({hashlib.sha256(file.read_bytes()).hexdigest() for file in _files(checkpoint, code.values())}),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """Return settings without those that decide nothing, at any depth, and whole numbers as such."""
    if isinstance(value, dict):
        return {
            name: _canonical(inner)
            for name, inner in value.items()
            if name not in _OTHER_SETTINGS and not name.startswith("_")
        }
    if isinstance(value, list):
        return [_canonical(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _of_adapter(folder: Path) -> Any:
    """Return the settings of an adapter that decide something; names of modules have no order."""
    settings = read_settings(folder / ADAPTER_CONFIG)
    named = {name: value for name, value in settings.items() if name not in _OTHER_SETTINGS_OF_ADAPTERS}
    return _canonical({name: sorted(value) if _are_names(value) else value for name, value in named.items()})


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _files(checkpoint: Checkpoint, references: Collection[str]) -> Iterator[Path]:
    """Yield the files of classes such as "modeling.Model" or "ORG/NAME--modeling.Model", and those they import.

    Files that are not there are left to transformers, which refuses to load the network.
    """
    for reference in references:
        repository, _, place = reference.rpartition("--")
        file = f"{place.rpartition('.')[0]}.py"
        with suppress(OSError):
            path = checkpoint.directory / file if not repository else _of_repository(checkpoint, repository, file)
            yield from (path, *map(Path, dynamic_module_utils.get_relative_import_files(path)))


def _of_repository(checkpoint: Checkpoint, repository: str, file: str) -> Path:
    """Return the copy of a file of another repository that transformers imports."""
    copied = dynamic_module_utils.get_cached_module_file(
        repository, file, revision=checkpoint.code.get(repository), local_files_only=True
    )
    return Path(dynamic_module_utils.HF_MODULES_CACHE, copied)
