"""Refuse a `config.json` with settings that transformers' class of its architecture does not read.

They are those of the authors' own code, or of another version of transformers. Vectors would be others, without a word.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from whiten_export.sources.describe.checkpoint import Checkpoint, way_to_code
from whiten_export.sources.describe.files import read_settings
from whiten_runtime.errors import WhitenError

_OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "nomic_bert": {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "layer_norm_epsilon": "layer_norm_eps",
        "rotary_emb_base": "rope_theta",
    },
}
"""Names of settings in own code, and those of the same settings in transformers, by architecture."""

_ONLY: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "nomic_bert": {
        "activation_function": ("swiglu",),
        "prenorm": (False,),
        "parallel_block": (False,),
        "causal": (False,),
        "use_rms_norm": (False, None),
        "num_experts": (0, None),
        "rotary_emb_fraction": (1.0,),
        "rotary_emb_interleaved": (False,),
        "rotary_emb_scale_base": (None,),
        "rotary_scaling_factor": (None,),
    },
    "gte": {
        "position_embedding_type": ("rope",),
        "layer_norm_type": ("layer_norm",),
        "logn_attention_scale": (False, None),
    },
}
"""Settings of own code with the only values that transformers' class computes, by architecture."""


def check_config(checkpoint: Checkpoint, config: Any, version: str) -> None:
    """Refuse settings that the class of a config does not read.

    Args:
        checkpoint: files of the model.
        config: the config as transformers' class has read it.
        version: version of transformers.

    Raises:
        WhitenError: a setting is not read, and what is read in its place is another.
    """
    path = checkpoint.directory / "config.json"
    settings = read_settings(path)
    if version.startswith("4.") and not _same_rotary(settings.get("rope_parameters"), config):
        raise WhitenError(
            f"{path}: has rope_parameters, which transformers {version} does not read, so it may compute other "
            "vectors; install transformers 5"
        )
    unread = next(_unread(config.model_type, settings, config), None)
    if unread is not None:
        name, used = unread
        way = way_to_code(checkpoint)
        raise WhitenError(
            f"{path}: {name} is {settings[name]!r}, but transformers {version} does not read it and computes a "
            f"{config.model_type} network with {used!r}; "
            + (f"the checkpoint {way}" if way else "the network needs its authors' own code, with --trust-remote-code")
        )


def _unread(kind: str, settings: Mapping[str, Any], config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings of own code that are not read, and what transformers' class computes with."""
    for name, known in _OTHER_NAMES.get(kind, {}).items():
        used = _theta(config) if known == "rope_theta" else getattr(config, known)
        if settings.get(name, used) not in (None, used):
            yield name, used
    for name, values in _ONLY.get(kind, {}).items():
        if settings.get(name, values[0]) not in values:
            yield name, values[0]


def _theta(config: Any) -> Any:
    return (getattr(config, "rope_parameters", None) or {}).get("rope_theta")


def _same_rotary(stated: Any, config: Any) -> bool:
    """Return whether transformers 4 computes the rotary embeddings that a config of transformers 5 states."""
    if not stated:
        return True
    usual = isinstance(stated, Mapping) and stated.keys() <= {"rope_theta", "rope_type"}
    return (
        usual
        and stated.get("rope_type", "default") == "default"
        and stated.get("rope_theta") == getattr(config, "rope_theta", None)
        and not getattr(config, "rope_scaling", None)
    )


def rotary_kinds(config: Any) -> set[str]:
    """Return the kinds of rotary embeddings that a config names, such as "yarn"."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    each = [one for one in (settings, *settings.values()) if isinstance(one, Mapping)]
    return {str(one[name]) for one in each for name in ("rope_type", "type") if name in one}
