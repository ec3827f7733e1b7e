"""Identify the space of a bundle's vectors: bundles with one id give vectors that can be compared."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.manifest import NESTED_METHODS, SPACE_DIGITS, CorpusRecord, Manifest, WhiteningRecord


def space_of(manifest: Manifest) -> str:
    """Return the id of the space of a bundle's vectors: the manifest's own, or that of `space_id`."""
    return manifest.space or space_id(manifest)


def former_space_of(manifest: Manifest) -> str | None:
    """Return the id of the same space by the former rule (`Source.former_network_sha256`); None where there is none."""
    former = manifest.source.former_network_sha256
    if former is msgspec.UNSET:
        return None
    source = msgspec.structs.replace(manifest.source, network_sha256=former, parameters_sha256=msgspec.UNSET)
    return space_id(msgspec.structs.replace(manifest, source=source))


def is_in_space(manifest: Manifest, space: str) -> bool:
    """Return whether an id is that of the space of a bundle's vectors, by today's rule or by the former one."""
    return space in (space_of(manifest), former_space_of(manifest))


def with_space(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, space=space_id(manifest))


def space_id(manifest: Manifest) -> str:
    """Compute the id of a space: 16 hexadecimal digits of a SHA-256 over all that decides the coordinates.

    These are the source's weights, network, tokenizer, prompts, layers, pooling, modules and map, and whether the
    vectors are normalised. The map is identified by the corpus and options it was fitted with: the last bits of W
    differ between processors. Precision, target, versions and name are left out, and so is the maximum length unless
    the map is one whose axes turn (`turning`).

    The id of a bundle must never change: a field that is added to the manifest later may enter only where it is set.
    """
    text = json.dumps(_coordinates(manifest), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:SPACE_DIGITS]


def _coordinates(manifest: Manifest) -> dict[str, Any]:
    source = manifest.source
    network = {} if source.network_sha256 is msgspec.UNSET else {"network": source.network_sha256}
    return {
        **network,
        "weights": source.weights_sha256 if source.parameters_sha256 is msgspec.UNSET else source.parameters_sha256,
        "merged_into": None if network else source.merged_into,  # a name; the weights are those of both
        "tokenizer": _tokenizer(manifest),
        "input": manifest.input,
        "layers": _used(manifest.layers, manifest.layer_weights),
        "layer_weights": _shares(tuple(weight for weight in manifest.layer_weights or () if weight) or None),
        "pooling": manifest.pooling,
        "include_prompt": manifest.include_prompt,
        "modules": manifest.modules,
        "prompts": manifest.prompts,
        "default_prompt_name": manifest.default_prompt_name,
        "route": manifest.route,
        "truncation_side": manifest.truncation_side,
        "map": None if manifest.whitening is None else _map(manifest.whitening, manifest.max_seq_length),
        "normalize": manifest.normalize,
        "dimension": manifest.dimension,
    }


def _used(layers: tuple[int, ...], weights: tuple[float, ...] | None) -> tuple[int, ...]:
    """Return the layers that have a weight: one without is the same as none."""
    if weights is None:
        return layers
    return tuple(layer for layer, weight in zip(layers, weights, strict=True) if weight)


def _tokenizer(manifest: Manifest) -> str | None:
    """Return the hash of what the tokenizer does, which has no length; that of the file's bytes in bundles before 0.5.

    Lower-casing is in no other field.
    """
    if manifest.tokenizer_sha256 is not msgspec.UNSET:
        return manifest.tokenizer_sha256
    record = manifest.files.get(TOKENIZER_FILE)
    return None if record is None else record.sha256


def _shares(weights: tuple[float, ...] | None) -> list[float] | None:
    """Return the layers' weights divided by their sum; None if they are equal."""
    if weights is None or len(set(weights)) == 1:
        return None
    total = sum(weights) or 1.0
    return [round(weight / total, 12) for weight in weights]


def _map(whitening: WhiteningRecord, max_seq_length: int) -> dict[str, Any]:
    fixed = whitening.shrinkage_estimator == "fixed"
    content: dict[str, Any] = {
        "method": whitening.method,
        "common_components": whitening.common_components,
        "beta": float(whitening.beta),
        "shrinkage_estimator": whitening.shrinkage_estimator,
        "shrinkage": float(whitening.shrinkage) if fixed else None,
        "eigenvalue_floor": float(whitening.eigenvalue_floor),
        "corpus": sorted((corpus.sha256, corpus.sentences) for corpus in whitening.corpus),
    }
    if whitening.method in NESTED_METHODS:
        content["vectors"] = turning(whitening.corpus, max_seq_length)
    if whitening.prompt_name is not msgspec.UNSET:
        content["prompt_name"] = whitening.prompt_name
    if whitening.alignment is not None:
        content["aligned_to"] = whitening.alignment.space
    return content


def turning(corpora: Sequence[CorpusRecord], max_seq_length: int) -> dict[str, Any]:
    """Return what else decides the axes of pca and pca-cor: all that changes the corpus's vectors a little.

    Eigenvectors of nearly equal eigenvalues turn into each other. Measured on all-MiniLM-L6-v2, layers 1 and 6, fitted
    on 1,500 sentences, as the median cosine of the same text under two maps:

    - statistics of int8 vectors and of float32's: 0.48 with pca, 0.999 with zca (fp16: 0.99, at worst 0.90);
    - sentences cut to 64 tokens, which cuts 15 of them, and not cut: 0.62 with pca, 0.9999 with zca;
    - one map in an int8 and in a float32 bundle: 0.998 with either.
    """
    precisions = sorted((corpus.sha256, corpus.fitted_at) for corpus in corpora if corpus.fitted_at is not None)
    return {"max_seq_length": max_seq_length, "fitted_at": precisions}
