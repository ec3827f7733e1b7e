"""Identify the space of a bundle's vectors: bundles with one id give vectors that can be compared."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.manifest import (
    NESTED_METHODS,
    SPACE_DIGITS,
    CorpusRecord,
    FileRecord,
    Manifest,
    WhiteningRecord,
)


def space_of(manifest: Manifest) -> str:
    """Return the id of the space of a bundle's vectors: the manifest's own, or for older bundles that of `space_id`."""
    return manifest.space or space_id(manifest)


def with_space(manifest: Manifest) -> Manifest:
    """Return a manifest with the id of its space, in place of any other."""
    return msgspec.structs.replace(manifest, space=space_id(manifest))


def space_id(manifest: Manifest) -> str:
    """Compute the id of a space: 16 hexadecimal digits of a SHA-256 over all that decides the coordinates.

    These are the source's weights, tokenizer, prompts, layers, pooling, modules and map. The map is identified by the
    corpus and options it was fitted with: the last bits of W differ between processors. Precision, target, maximum
    length, versions and name are left out.

    The id of a bundle must never change: a field that is added to the manifest later may enter only where it is set.
    """
    content = json.dumps(_coordinates(manifest), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:SPACE_DIGITS]


def _coordinates(manifest: Manifest) -> dict[str, Any]:
    source = manifest.source
    return {
        "weights": source.weights_sha256,
        "merged_into": source.merged_into,
        "tokenizer": _tokenizer(manifest.files),
        "input": manifest.input,
        "layers": manifest.layers,
        "layer_weights": _shares(manifest.layer_weights),
        "pooling": manifest.pooling,
        "include_prompt": manifest.include_prompt,
        "modules": manifest.modules,
        "prompts": manifest.prompts,
        "default_prompt_name": manifest.default_prompt_name,
        "route": manifest.route,
        "truncation_side": manifest.truncation_side,
        "map": None if manifest.whitening is None else _map(manifest.whitening),
        "normalize": manifest.normalize,
        "dimension": manifest.dimension,
    }


def _tokenizer(files: Mapping[str, FileRecord]) -> str | None:
    """Return the hash of tokenizer.json, which holds no length: it is the same for every --max-length.

    A version of `tokenizers` that writes the file differently changes it without need. Leaving it out would be worse:
    lower-casing is in no other field.
    """
    record = files.get(TOKENIZER_FILE)
    return None if record is None else record.sha256


def _shares(weights: tuple[float, ...] | None) -> list[float] | None:
    """Return the layers' weights divided by their sum; None if they are equal."""
    if weights is None or len(set(weights)) == 1:
        return None
    total = sum(weights) or 1.0
    return [round(weight / total, 12) for weight in weights]


def _map(whitening: WhiteningRecord) -> dict[str, Any]:
    fixed = whitening.shrinkage_estimator == "fixed"
    content: dict[str, Any] = {
        "method": whitening.method,
        "common_components": whitening.common_components,
        "beta": float(whitening.beta),
        "shrinkage_estimator": whitening.shrinkage_estimator,
        "shrinkage": float(whitening.shrinkage) if fixed else None,
        "eigenvalue_floor": float(whitening.eigenvalue_floor),
        "corpus": sorted(_fitted_on(corpus, whitening.method in NESTED_METHODS) for corpus in whitening.corpus),
    }
    if whitening.alignment is not None:
        content["aligned_to"] = whitening.alignment.space
    return content


def _fitted_on(corpus: CorpusRecord, turns: bool) -> tuple[str | int, ...]:
    """Return what identifies a corpus: with its precision, if not fp32, where the map may turn by it.

    Eigenvectors of nearly equal eigenvalues turn into each other. all-MiniLM-L6-v2, layers 1 and 6, refitted on 1,500
    sentences: the same text whitened by int8's own statistics and by float32's has a median cosine of 0.48 with pca
    (0.99 for fp16, at worst 0.90), 0.999 with zca. With one map for all precisions it is 0.998.
    """
    known = (corpus.sha256, corpus.sentences)
    return (*known, corpus.fitted_at) if turns and corpus.fitted_at is not None else known
