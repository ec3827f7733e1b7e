"""Measure the speed of a network that is cut above each layer."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from whiten_evaluation.sweep.graph import LayerGraph
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.ort.session import SessionOptions

ROUNDS = 5
"""Measurements of each depth."""

_SECONDS = 1.5
"""Seconds that a measurement of the whole network should take."""

_LEAST, _MOST = 32, 512


def measure_depths(
    graph: LayerGraph, texts: Sequence[str], options: SessionOptions, advance: Callable[[int], object]
) -> list[tuple[float, ...]]:
    """Measure the speed of the graph cut above each of its layers, in interleaved rounds.

    Args:
        graph: graph of all layers, with its files.
        texts: texts, of which an evenly spaced sample is embedded.
        options: options of the sessions.
        advance: called with 1 after each measurement.

    Returns:
        For each layer, `ROUNDS` measurements in texts per second.
    """
    names = [graph.write_depth(layer, graph.poolings[0], _path(graph, layer)) for layer in graph.layers]
    sample = list(texts[:: max(1, len(texts) // _MOST)])[:_MOST]
    count = _LEAST
    found: list[list[float]] = [[] for _ in graph.layers]
    for _ in range(ROUNDS):
        for index in reversed(range(len(names))):  # the whole network first: its speed determines the number of texts
            with graph.embedder(options, _path(graph, graph.layers[index]), names[index]) as embedder:
                rate = _rate(embedder, names[index], sample[:_LEAST])
                if count == _LEAST:
                    count = max(_LEAST + 1, min(len(sample), round(rate * _SECONDS)))
                found[index].append(_rate(embedder, names[index], sample[:count]))
            advance(1)
    for layer in graph.layers:
        _path(graph, layer).unlink()
    return [tuple(rates) for rates in found]


def steps(graph: LayerGraph) -> int:
    """Return the number of measurements that `measure_depths` makes."""
    return ROUNDS * len(graph.layers)


def _path(graph: LayerGraph, layer: int) -> Path:
    return graph.folder / f"depth-{layer}.onnx"


def _rate(embedder: Embedder, value: str, texts: Sequence[str]) -> float:
    started = time.perf_counter()
    for _ in embedder.windows(texts, embedder.whole(value)):
        pass
    return len(texts) / (time.perf_counter() - started)
