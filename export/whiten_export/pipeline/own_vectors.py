"""Compare the sentence vectors that an ONNX graph gives itself with those that an export makes of its token states."""

import re
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from whiten_export.graph.poolings import POOLINGS
from whiten_export.pipeline.plan import Plan
from whiten_export.proof.probe_texts import LONGEST_PROBE, probe_texts
from whiten_export.proof.reference import Composition, Float64Array, Head, text_alone
from whiten_export.sources.choice import SourceChoice
from whiten_runtime.bundle.parity import GATES, compare
from whiten_runtime.bundle.records import Pooling
from whiten_runtime.errors import RunError, UsageError
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.reporter import Reporter

_SENTENCE_VECTOR = re.compile("embed|sentence|vec", re.IGNORECASE)
"""Names of outputs that a graph's makers call a sentence vector."""

_UNIT = 1e-3
"""Largest distance of a norm from 1 that counts as 1."""


def check_own_vectors(plan: Plan, source: SourceChoice, tokenizer: Tokenizer, report: Reporter) -> None:
    """Check that a graph's own sentence vectors have the directions of the pooled states of its last layer.

    The modules of sentence-transformers beside the graph say whether they are normalised. Nothing is compared if the
    caller names a pooling or other layers: then other vectors are asked for.

    Args:
        plan: plan of the export.
        source: choices of the caller, with a pooling only if one was named.
        tokenizer: tokenizer of the bundle.
        report: receives the outputs that are not used.

    Raises:
        UsageError: the graph's own vectors are others.
    """
    top = (plan.model.record.num_hidden_layers,)
    overrides = source.pooling is not None or (source.layers is not None and plan.layers != top)
    for output in plan.model.own_outputs:
        if overrides or not _SENTENCE_VECTOR.search(output) or not set(top) <= set(plan.model.layers):
            report.stage(f"the graph's own output {output} is not used: its token states are pooled ({plan.pooling})")
        else:
            with suppress(RunError):  # of a length that the graph does not take: the gate names it
                _check(plan, output, _rows(plan, tokenizer), report)


def _rows(plan: Plan, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the token ids of the probes, without texts that have none."""
    rows = tokenizer.tokenize(probe_texts(min(plan.max_seq_length, LONGEST_PROBE)))
    return [ids for row in rows if (ids := plan.model.tokenizer.plain(tokenizer.cut(row)))]


def _check(plan: Plan, output: str, rows: Sequence[Sequence[int]], report: Reporter) -> None:
    theirs = plan.model.own_vectors(output, rows)
    subject = f"'{plan.checkpoint.model}': the graph's own output {output}"
    keep = f"--pooling {plan.pooling} takes the pooled token states all the same"
    if not np.isfinite(theirs).all():
        raise UsageError(f"{subject} is NaN or infinite for some texts; {keep}")
    ours = _pooled(plan, plan.pooling, rows)
    if _equal(ours, theirs):
        unit = np.abs(np.linalg.norm(theirs, axis=1) - 1).max() < _UNIT
        if unit and plan.own is None and not plan.whitens and not plan.normalize:
            report.stage(f"the graph's own output {output} is this vector divided by its norm, as with --normalize")
        return
    if theirs.shape != ours.shape:
        raise UsageError(
            f"{subject} has {theirs.shape[1]} numbers, but {plan.pooling} pooling of its token states gives "
            f"{ours.shape[1]}, so its last steps would be left out; export it with its token states alone and the "
            f"modules of sentence-transformers beside it; {keep}"
        )
    poolings = (mode for mode, row in POOLINGS.items() if row.weights is not None and mode != plan.pooling)
    if (equal := next((mode for mode in poolings if _equal(_pooled(plan, mode, rows), theirs)), None)) is not None:
        raise UsageError(f"{subject} is {equal} pooling of its token states: pass --pooling {equal}; {keep}")
    worst = compare(_unit(ours), _unit(theirs)).min_cosine
    pooled = f"{plan.pooling} pooling of its token states gives"
    raise UsageError(f"{subject} is another vector than {pooled} (cosine {worst:.3f} at worst); {keep}")


def _pooled(plan: Plan, pooling: Pooling, rows: Sequence[Sequence[int]]) -> Float64Array:
    """Return the vectors that the model's authors, by its files, make of the last layer with a pooling."""
    composition = plan.composition if plan.keeps_modules and pooling == plan.pooling else None
    if composition is None:
        composition = Composition((plan.model.record.num_hidden_layers,), pooling)
    reference = plan.model.reference(composition.layers, pooling)
    return np.concatenate([composition(reference.pooled(*text_alone(row))) for row in rows])


def _equal(ours: Float64Array, theirs: Float64Array) -> bool:
    """Return whether vectors have the same directions, within the bounds of the gate."""
    return ours.shape == theirs.shape and GATES["fp32"].passes(compare(_unit(ours), _unit(theirs)))


def _unit(vectors: Float64Array) -> Float64Array:
    return Head(None, True)(vectors)
