"""Describe a pretrained model on disk: its files, how its authors make vectors, its own code, its manifest record."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from whiten_export.proof.reference import Composition
from whiten_models.catalogue import Entry
from whiten_runtime.bundle.records import Pooling, Similarity, Source
from whiten_runtime.hub.uploading import CARD_FILE

Kind = Literal["transformers", "onnx", "words", "static"]


@dataclass(frozen=True)
class Step:
    """Names a module of sentence-transformers."""

    kind: str  # name of its class, without the class's place, which moved between versions
    folder: Path  # folder of its files


@dataclass(frozen=True)
class Authors(Composition):
    """How a model's authors make the vector of a text."""

    layers: tuple[int, ...] = (-1,)  # indices into the hidden states; -1 is the last, however many there are
    # what says so: the files of a program, the outputs of an ONNX graph, or the catalogue
    stated_by: Literal["sentence-transformers", "model2vec", "graph", "catalogue"] = "catalogue"
    normalize: bool = False  # whether vectors are divided by their L2 norm at the end
    prompts: Mapping[str, str] = field(default_factory=dict)  # prompts by name
    default_prompt_name: str | None = None  # name of the prompt that texts get if none is asked for
    similarity_fn_name: Similarity = "cosine"  # similarity of two vectors
    matryoshka_dimensions: tuple[int, ...] = ()  # dimensions at which vectors may be cut, largest first
    max_length: int | None = None  # maximum number of tokens of a text; None if not stated
    do_lower_case: bool = False  # whether texts are lower-cased before they are tokenised
    steps: tuple[Step, ...] = ()  # modules of sentence-transformers in order, those of a route in place of a Router
    route: str | None = None  # route of the Router; None without one
    files: tuple[Path, ...] = ()  # weight files of the modules behind the network


@dataclass(frozen=True)
class Checkpoint:
    """Pretrained model on disk."""

    model: str  # model as the user named it
    name: str  # short name, valid as a directory name
    # "transformers" for PyTorch weights, "onnx" for an encoder, "words" for a file of word vectors, or "static"
    # for a StaticEmbedding of sentence-transformers
    kind: Kind
    directory: Path  # directory of config, tokenizer and weights
    weights: tuple[Path, ...]  # files that contain the weights
    hub_id: str | None = None  # id on the hub, or None for local files
    revision: str | None = None  # commit on the hub, where known
    entry: Entry | None = None  # catalogue entry, if there is one
    adapter: Path | None = None  # directory of a LoRA adapter to merge into the weights, or None
    base_beside: Path | None = None  # directory of the adapter's base, where its relative path leads from beside it
    merged_into: str | None = None  # model that the adapter is merged into, or None
    weights_sha256: str = ""  # SHA-256 over the weight files, in the order of their names
    root: Path | None = None  # directory that names the model, which contains `directory`; None if they are the same
    authors: Authors | None = None  # how its authors make a vector of a text; None if nothing says so
    sentence_similarity: bool = False  # whether its files or the catalogue say that it was fine-tuned for it
    code: Mapping[str, str] = field(default_factory=dict)  # commits of other repositories whose code runs, by their ids
    notes: tuple[str, ...] = ()  # which of several models a name was taken for, where it may be another's

    @property
    def pooling(self) -> Pooling:
        """Return the default pooling: that of its authors, else the catalogue's, else "mean"."""
        if self.authors is not None:
            return self.authors.pooling
        return self.entry.pooling if self.entry is not None else "mean"

    @property
    def describes_vectors(self) -> bool:
        """Return whether its own files, and not only the catalogue, say how its authors make a vector."""
        return self.authors is not None and self.authors.stated_by != "catalogue"

    @property
    def tokenizer_directory(self) -> Path:
        """Return the directory of the tokenizer's files: that of the adapter, if it contains a tokenizer."""
        if self.adapter is not None and (self.adapter / "tokenizer_config.json").is_file():
            return self.adapter
        return self.directory


def with_catalogue(checkpoint: Checkpoint) -> Checkpoint:
    """Complete what a checkpoint's files say of its authors' vectors by its entry of the catalogue, if it has one."""
    entry, authors = checkpoint.entry, checkpoint.authors
    if entry is None:
        return checkpoint
    if authors is None and entry.as_published:
        authors = Authors((-1,), entry.pooling, normalize=entry.normalize, max_length=entry.max_length)
    if authors is not None:
        authors = replace(
            authors,
            prompts=dict(entry.prompts) | dict(authors.prompts),
            default_prompt_name=authors.default_prompt_name or entry.default_prompt,
            matryoshka_dimensions=entry.dimensions,
        )
    similar = checkpoint.sentence_similarity or entry.sentence_similarity
    return replace(checkpoint, authors=authors, sentence_similarity=similar)


_SPELLING = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")


_OF_THE_HUB = {
    "licenseref-gemma": "gemma",
    "licenseref-llama": "other",
    "licenseref-llama-2": "llama2",
    "pddl-1.0": "pddl",
}
"""Spellings of the hub that differ from those of SPDX, which the catalogue has, by more than their case."""


def recommended_layers(checkpoint: Checkpoint, count: int) -> tuple[int, ...]:
    """Return the catalogue's layers, else the first and the last of `count` blocks; of an embedding model, the last."""
    if checkpoint.entry is not None:
        return checkpoint.entry.recommended_layers
    return (count,) if checkpoint.sentence_similarity else tuple(sorted({1, count}))


def source_record(
    checkpoint: Checkpoint,
    model_type: str,
    num_hidden_layers: int,
    hidden_size: int,
    ignored_code: tuple[str, ...] = (),
    remote_code: tuple[str, ...] = (),
    network_sha256: tuple[str | UnsetType, str | UnsetType] = (UNSET, UNSET),
) -> Source:
    """Describe a checkpoint for the manifest; the second hash of its network is by the former rule."""
    network, former = network_sha256
    return Source(
        model=checkpoint.name,
        checkpoint=checkpoint.hub_id,
        revision=checkpoint.revision,
        weights_sha256=checkpoint.weights_sha256,
        network_sha256=network,
        former_network_sha256=former,
        merged_into=checkpoint.merged_into,
        model_type=model_type,
        num_hidden_layers=num_hidden_layers,
        hidden_size=hidden_size,
        sentence_similarity=checkpoint.sentence_similarity,
        license=stated_license(checkpoint),
        ignored_code=ignored_code or UNSET,
        remote_code=remote_code or UNSET,
    )


def read_card(folder: Path) -> Mapping[str, Any]:
    """Return what the first lines of a folder's README.md state; nothing where they cannot be read."""
    if (card := folder / CARD_FILE).is_file():
        from huggingface_hub import metadata_load

        with suppress(Exception):  # OSError, UnicodeError, and those of the YAML reader, which share no base class
            return metadata_load(card) or {}
    return {}


def stated_license(checkpoint: Checkpoint) -> str | None:
    """Return the licence that a checkpoint's own README.md states, else the catalogue's, in the hub's spelling."""
    folder, names = checkpoint.adapter or checkpoint.root or checkpoint.directory, []
    if checkpoint.kind != "words":  # what else is in the folder of a file may be of anything
        names.append(read_card(folder).get("license"))
    names.append(checkpoint.entry.licence if checkpoint.entry else None)
    spelled = (_OF_THE_HUB.get(name.lower(), name.lower()) for name in names if isinstance(name, str))
    return next(filter(_SPELLING.fullmatch, spelled), None)
