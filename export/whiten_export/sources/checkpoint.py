"""Describe a pretrained model on disk: its files, its own Python code, and its record for the manifest."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from whiten_export.sources.files import (
    network_code,
    split_repository,
    tokenizer_code,
)
from whiten_export.sources.published import Published
from whiten_models.catalogue import Entry
from whiten_runtime.bundle.records import Pooling, Source
from whiten_runtime.hub.uploading import CARD_FILE

Kind = Literal["transformers", "onnx", "words", "static"]


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
    published: Published | None = None  # how sentence-transformers makes a vector of it; None without its files
    makes_vectors: bool = False  # whether something else says that its authors make sentence vectors of it
    code: Mapping[str, str] = field(default_factory=dict)  # commits of other repositories whose code runs, by their ids
    notes: tuple[str, ...] = ()  # which of several models a name was taken for, where it may be another's

    @property
    def sentence_similarity(self) -> bool:
        """Return whether it was fine-tuned for sentence similarity, by the catalogue or by its files."""
        known = self.entry is not None and self.entry.sentence_similarity
        return known or self.published is not None or self.makes_vectors

    @property
    def pooling(self) -> Pooling:
        """Return the pooling of its authors, else the catalogue's, else "mean"."""
        if self.published is not None:
            return self.published.pooling
        return self.entry.pooling if self.entry is not None else "mean"

    @property
    def own(self) -> Published | None:
        """Return how its authors make a vector, by its files or by the catalogue; None if neither says."""
        entry, published = self.entry, self.published
        if entry is None:
            return published
        if published is None:
            if not entry.as_published:
                return None
            published = Published(self.directory, pooling=entry.pooling, normalize=entry.normalize)
        default = published.default_prompt_name or entry.default_prompt
        return replace(published, prompts=dict(entry.prompts) | dict(published.prompts), default_prompt_name=default)

    @property
    def tokenizer_directory(self) -> Path:
        """Return the directory of the tokenizer's files: that of the adapter, if it contains a tokenizer."""
        if self.adapter is not None and (self.adapter / "tokenizer_config.json").is_file():
            return self.adapter
        return self.directory


def code_that_ran(checkpoint: Checkpoint, runs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files of code that runs, by name: "own.py", or "ORG/NAME@COMMIT/own.py" of another repository.

    Args:
        checkpoint: files of the model.
        runs: classes of transformers, such as "AutoModel", in whose place code of the checkpoint runs.
    """
    files = (split_repository(file) for name, file in _codes(checkpoint).items() if name in runs)
    places = {repository: f"{repository}@{commit}/" for repository, commit in checkpoint.code.items()}
    return tuple(sorted({f"{places[repository] if repository else ''}{name}" for repository, name in files}))


def ignored_code(checkpoint: Checkpoint, runs: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the files of a checkpoint's own code for its config, network and tokenizer that are not run, by name.

    Models of the catalogue are known to be right without such code, and have none here.

    Args:
        checkpoint: files of the model.
        runs: classes of transformers, such as "AutoModel", in whose place code of the checkpoint runs.
    """
    if checkpoint.entry is not None:
        return ()
    return tuple(sorted({file for name, file in _codes(checkpoint).items() if name not in runs}))


def code_notes(checkpoint: Checkpoint, record: Source, trust_remote_code: bool) -> tuple[str, ...]:
    """Return what an export says of a checkpoint's own code that was not run; nothing without such code."""
    if not record.ignored_code:
        return ()
    could_run = checkpoint.kind == "transformers" and not trust_remote_code
    hint = ", which may be others: read the code, and run it with --trust-remote-code" if could_run else ""
    return (
        f"{checkpoint.name} has Python code of its own that was not run: {', '.join(record.ignored_code)}; its vectors "
        f"here are those of transformers' classes{hint}",
    )


def way_to_code(checkpoint: Checkpoint, reason: str = "") -> str | None:
    """Return where a checkpoint's own code lies and how it is run, for messages; None without any.

    `reason` is why transformers cannot load it, which may be code that another file than usual names.
    """
    files = sorted(set(_codes(checkpoint).values()))
    if not files and "trust_remote_code" not in reason:
        return None
    others = sorted({repository for repository, _ in map(split_repository, files) if repository})
    where = f"in the repository {' and '.join(others)}" if others else f"in its folder: {', '.join(files) or '*.py'}"
    return f"comes with Python code of its own ({where}); read it, then allow it with --trust-remote-code"


def _codes(checkpoint: Checkpoint) -> dict[str, str]:
    codes = tokenizer_code(checkpoint.tokenizer_directory)
    return codes | network_code(checkpoint.directory) if checkpoint.kind == "transformers" else codes


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
