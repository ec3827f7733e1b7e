"""Compare the sentence vectors that an ONNX graph gives itself with those that an export makes of its token states."""

import re
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from whiten_export.graph.poolings import POOLINGS
from whiten_export.pipeline.recipe import Recipe
from whiten_export.pipeline.tools import Tools
from whiten_export.proof.probe_texts import LONGEST_PROBE, probe_texts
from whiten_export.proof.reference import Composition, Float64Array, Head, text_alone
from whiten_export.sources.model import TokenModel
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.parity import GATES, compare
from whiten_runtime.bundle.records import Pooling
from whiten_runtime.errors import RunError, UsageError

_SENTENCE_VECTOR = re.compile("embed|sentence|vec", re.IGNORECASE)
"""Names of outputs that a graph's makers call a sentence vector."""

_UNIT = 1e-3
"""Largest distance of a norm from 1 that counts as 1."""


def check_own_vectors(manifest: Manifest, tools: Tools, recipe: Recipe) -> None:
    """Check that a graph's own sentence vectors have the directions of the pooled states of its last layer.

    The modules of sentence-transformers beside the graph say whether they are normalised. Nothing is compared if the
    caller names a pooling or other layers: then other vectors are asked for.

    Args:
        manifest: draft of the bundle.
        tools: source and tokenizer; its report receives the outputs that are not used.
        recipe: choices of the caller, with a pooling only if one was named.

    Raises:
        UsageError: the graph's own vectors are others.
    """
    source, pooling = tools.source, manifest.pooling
    top = (manifest.source.num_hidden_layers,)
    overrides = recipe.pooling is not None or (recipe.layers is not None and manifest.layers != top)
    for output in source.own_outputs:
        if overrides or not _SENTENCE_VECTOR.search(output) or not set(top) <= set(source.layers):
            tools.report.stage(f"the graph's own output {output} is not used: its token states are pooled ({pooling})")
        else:
            with suppress(RunError):  # of a length that the graph does not take: the gate names it
                _check(manifest, output, _rows(manifest, tools), tools)


def _rows(manifest: Manifest, tools: Tools) -> list[list[int]]:
    """Return the token ids of the probes, without texts that have none."""
    rows = tools.tokenizer.tokenize(probe_texts(min(manifest.max_seq_length, LONGEST_PROBE)))
    return [ids for row in rows if (ids := tools.source.tokenizer.plain(tools.tokenizer.cut(row)))]


def _check(manifest: Manifest, output: str, rows: Sequence[Sequence[int]], tools: Tools) -> None:
    source, pooling = tools.source, manifest.pooling
    assert pooling is not None
    theirs = source.own_vectors(output, rows)
    subject = f"'{source.checkpoint.model}': the graph's own output {output}"
    keep = f"--pooling {pooling} takes the pooled token states all the same"
    if not np.isfinite(theirs).all():
        raise UsageError(f"{subject} is NaN or infinite for some texts; {keep}")
    ours = _pooled(manifest, pooling, rows, source)
    if _equal(ours, theirs):
        unit = np.abs(np.linalg.norm(theirs, axis=1) - 1).max() < _UNIT
        whitens = tools.fit is not None and tools.fit.recipe.whitening is not None
        if unit and not source.embeds and not whitens and not manifest.normalize:
            tools.report.stage(
                f"the graph's own output {output} is this vector divided by its norm, as with --normalize"
            )
        return
    if theirs.shape != ours.shape:
        raise UsageError(
            f"{subject} has {theirs.shape[1]} numbers, but {pooling} pooling of its token states gives "
            f"{ours.shape[1]}, so its last steps would be left out; export it with its token states alone and the "
            f"modules of sentence-transformers beside it; {keep}"
        )
    others = (mode for mode, row in POOLINGS.items() if row.weights is not None and mode != pooling)
    equals = (mode for mode in others if _equal(_pooled(manifest, mode, rows, source), theirs))
    if (equal := next(equals, None)) is not None:
        raise UsageError(f"{subject} is {equal} pooling of its token states: pass --pooling {equal}; {keep}")
    worst = compare(_unit(ours), _unit(theirs)).min_cosine
    pooled = f"{pooling} pooling of its token states gives"
    raise UsageError(f"{subject} is another vector than {pooled} (cosine {worst:.3f} at worst); {keep}")


def _pooled(manifest: Manifest, pooling: Pooling, rows: Sequence[Sequence[int]], source: TokenModel) -> Float64Array:
    """Return the vectors that the model's authors, by its files, make of the last layer with a pooling."""
    if source.is_authors(manifest.layers, pooling) and pooling == manifest.pooling:
        composition = source.composition(manifest)
    else:
        composition = Composition((manifest.source.num_hidden_layers,), pooling)
    reference = source.reference(composition.layers, pooling)
    return np.concatenate([composition(reference.pooled(*text_alone(row))) for row in rows])


def _equal(ours: Float64Array, theirs: Float64Array) -> bool:
    """Return whether vectors have the same directions, within the bounds of the gate."""
    return ours.shape == theirs.shape and GATES["fp32"].passes(compare(_unit(ours), _unit(theirs)))


def _unit(vectors: Float64Array) -> Float64Array:
    return Head(None, True)(vectors)
