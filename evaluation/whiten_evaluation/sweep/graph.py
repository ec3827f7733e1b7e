"""Make a graph that outputs the vectors of all layers of a model, and check it against the model's reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from whiten_export.graph.files import save_graph
from whiten_export.graph.pooling import LAYERS_OUTPUT, layer_value, layers_graph
from whiten_export.proof.probe_texts import probe_texts
from whiten_export.sources.base import TokenModel
from whiten_export.writing.client_files import write_tokenizer
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.bundle.parity import GATES, compare
from whiten_runtime.errors import ParityError
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import load_graph
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions

GRAPH_FILE = "model.onnx"

_CHECKED_TEXTS = 12


@dataclass(frozen=True)
class LayerGraph:
    """Describes a folder with a graph of all layers and its tokenizer.

    Attributes:
        folder: the folder.
        layers: hidden states that the graph outputs.
        poolings: poolings of each hidden state.
        width: number of dimensions of a vector, d.
        pad_token_id: id of the token that pads a batch.
        max_seq_length: largest number of tokens of a text; longer texts are truncated.
    """

    folder: Path
    layers: tuple[int, ...]
    poolings: tuple[Pooling, ...]
    width: int
    pad_token_id: int
    max_seq_length: int

    @property
    def path(self) -> Path:
        """Return the path of the graph."""
        return self.folder / GRAPH_FILE

    def embedder(self, options: SessionOptions, model: Path | None = None, value: str = LAYERS_OUTPUT) -> Embedder:
        """Return an embedder of this graph, or of another graph in the folder.

        Args:
            options: options of the session.
            model: path of the graph; None for `path`.
            value: name of the output to compute.
        """
        tokenizer = Tokenizer(self.folder / TOKENIZER_FILE, self.max_seq_length)
        return load_graph(model or self.path, tokenizer, self.pad_token_id, options, value)

    def split(self, rows: np.ndarray) -> np.ndarray:
        """Reshape rows of the graph's output, [m, poolings * layers * d], to [poolings, layers, m, d]."""
        parts = rows.reshape(len(rows), len(self.poolings), len(self.layers), self.width)
        return np.ascontiguousarray(np.moveaxis(parts, 0, 2))

    def write_depth(self, layer: int, pooling: Pooling, path: Path) -> str:
        """Write the graph cut above one layer, beside the weights, and return the name of its output."""
        name = layer_value(layer, pooling)
        model = ir.load(self.path)
        model.graph.outputs[:] = [value for node in model.graph for value in node.outputs if value.name == name]
        RemoveUnusedNodesPass()(model)
        ir.save(model, path)
        return name


def write_layers(model: TokenModel, graph: LayerGraph) -> None:
    """Write the graph and the tokenizer into the graph's folder.

    Raises:
        WhitenError: the model cannot be loaded or exported.
    """
    write_tokenizer(graph.folder, model.tokenizer, graph.max_seq_length)
    hidden = model.hidden_states(graph.layers, "+".join(graph.poolings))
    save_graph(layers_graph(hidden, graph.layers, graph.poolings, graph.width), graph.path)


def check_layers(
    model: TokenModel, graph: LayerGraph, options: SessionOptions, advance: Callable[[int], object]
) -> None:
    """Compare every layer and pooling with the model's reference, on a dozen texts.

    Raises:
        ParityError: vectors of the graph differ from the reference by more than the parity gate allows.
    """
    texts = probe_texts(min(graph.max_seq_length, 64))[1 : _CHECKED_TEXTS + 1]
    with graph.embedder(options) as embedder:
        tokenizer = embedder.tokenizer
        ids = [tokenizer.cut(row) for row in tokenizer.tokenize(list(texts))]
        rows = embedder.embed(texts, embedder.whole(LAYERS_OUTPUT))
    got = graph.split(rows)
    for index, pooling in enumerate(graph.poolings):
        reference = model.reference(graph.layers, pooling)
        wanted = [_alone(reference.pooled, model.tokenizer.plain(row), graph) for row in ids]
        advance(1)
        for number, layer in enumerate(graph.layers):
            agreement = compare(got[index, number], np.stack([vectors[number] for vectors in wanted]))
            if not GATES["fp32"].passes(agreement):
                raise ParityError(
                    f"layer {layer} with {pooling} pooling is not what {reference.name} computes: {agreement}; wanted "
                    f"{GATES['fp32']}; no vectors were kept"
                )


def _alone(pooled: Callable[..., np.ndarray], ids: Sequence[int], graph: LayerGraph) -> np.ndarray:
    if not ids:
        return np.zeros((len(graph.layers), graph.width))
    row = np.asarray([ids], np.int64)
    return pooled(row, np.ones_like(row))[:, 0]
