"""Learn the weights of an export's layers from its pairs with scores, and put them into the graph."""

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from whiten_export.corpus.fitting import embed_value
from whiten_export.graph.files import reopen_graph
from whiten_export.graph.pooling import LAYERS_OUTPUT, set_shares
from whiten_export.pipeline.plan import Plan, with_layer_weights
from whiten_runtime.files.pairs import Pairs
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import load_graph
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.layer_weights import learn_weights
from whiten_whitening.moments import Float64Array


def weigh_layers(
    plan: Plan,
    graph: ir.Model,
    paths: tuple[Path, Path],
    tokenizer: Tokenizer,
    options: SessionOptions,
    report: Reporter,
) -> tuple[Plan, ir.Model]:
    """Return the plan with the weights that suit its pairs best, and the graph with these weights."""
    pairs = plan.pairs
    assert pairs is not None
    report.stage(f"weighing layers by {len(pairs.scores):,} pairs")
    pad = plan.model.tokenizer.pad_token_id
    with load_graph(paths[0], tokenizer, pad, options, LAYERS_OUTPUT, plan.prompts) as embedder:
        weights = learn_weights(*_by_layer(pairs, embedder, len(plan.layers)), pairs.scores)
    if weights is None:
        report.stage("layers weigh the same: no other weights are better on these pairs")
        set_shares(graph, plan.composition.shares)
        return plan, reopen_graph(graph, paths[1])
    said = ", ".join(f"layer {layer}: {weight:g}" for layer, weight in zip(plan.layers, weights, strict=True))
    report.stage(f"layers are averaged with weights ({said}){_unused(plan.layers, weights)}")
    weighted = with_layer_weights(plan, weights)
    set_shares(graph, weighted.composition.shares)
    return weighted, reopen_graph(graph, paths[1])


def _by_layer(pairs: Pairs, embedder: Embedder, count: int) -> tuple[Float64Array, Float64Array]:
    """Return the vectors of the first and the second sentences by layer, [layers, n, d]."""
    first, second = (embed_value(texts, embedder, LAYERS_OUTPUT) for texts in (pairs.first, pairs.second))
    return tuple(rows.reshape(len(rows), count, -1).swapaxes(0, 1) for rows in (first, second))  # type: ignore[return-value]


def _unused(layers: Sequence[int], weights: Sequence[float]) -> str:
    used = [str(layer) for layer, weight in zip(layers, weights, strict=True) if weight > 0]
    return "" if len(used) == len(layers) else f"; --layers {','.join(used)} with the same --dev gives a smaller graph"
