"""Describe a checkpoint for the manifest, with the licence that its authors state."""

import re
from contextlib import suppress

from msgspec import UNSET, UnsetType

from whiten_export.sources.describe.checkpoint import Checkpoint
from whiten_runtime.bundle.records import Source

_SPELLING = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")


_OF_THE_HUB = {
    "licenseref-gemma": "gemma",
    "licenseref-llama": "other",
    "licenseref-llama-2": "llama2",
    "pddl-1.0": "pddl",
}
"""Spellings of the hub that differ from those of SPDX, which the catalogue has, by more than their case."""


def recommended_layers(checkpoint: Checkpoint, count: int) -> tuple[int, ...]:
    """Return the catalogue's layers, else the first and the last of `count` blocks."""
    return checkpoint.entry.recommended_layers if checkpoint.entry else tuple(sorted({1, count}))


def source_record(
    checkpoint: Checkpoint,
    model_type: str,
    num_hidden_layers: int,
    hidden_size: int,
    ignored_code: tuple[str, ...] = (),
    remote_code: tuple[str, ...] = (),
    network_sha256: str | UnsetType = UNSET,
) -> Source:
    """Describe a checkpoint for the manifest."""
    return Source(
        model=checkpoint.name,
        checkpoint=checkpoint.hub_id,
        revision=checkpoint.revision,
        weights_sha256=checkpoint.weights_sha256,
        network_sha256=network_sha256,
        merged_into=checkpoint.merged_into,
        model_type=model_type,
        num_hidden_layers=num_hidden_layers,
        hidden_size=hidden_size,
        sentence_similarity=checkpoint.sentence_similarity,
        license=stated_license(checkpoint),
        ignored_code=ignored_code or UNSET,
        remote_code=remote_code or UNSET,
    )


def stated_license(checkpoint: Checkpoint) -> str | None:
    """Return the licence that a checkpoint's own README.md states, else the catalogue's, in the hub's spelling."""
    card, names = (checkpoint.adapter or checkpoint.root or checkpoint.directory) / "README.md", []
    if checkpoint.kind != "words" and card.is_file():  # what else is in the folder of a file may be of anything
        from huggingface_hub import metadata_load

        with suppress(Exception):  # OSError, UnicodeError, and those of the YAML reader, which share no base class
            names.append((metadata_load(card) or {}).get("license"))
    names.append(checkpoint.entry.licence if checkpoint.entry else None)
    spelled = (_OF_THE_HUB.get(name.lower(), name.lower()) for name in names if isinstance(name, str))
    return next(filter(_SPELLING.fullmatch, spelled), None)
