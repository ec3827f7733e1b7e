"""Embed texts with every layer of a model at once, and keep the vectors on disk."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.lib.format import write_array_header_2_0
from numpy.typing import NDArray

from whiten_export.bundle_files import write_tokenizer
from whiten_export.graph.attention import lower_attention
from whiten_export.graph.build import save_graph
from whiten_export.graph.ends import LAYERS_OUTPUT, layers_graph
from whiten_export.proof.probe_texts import probe_texts
from whiten_export.proof.reference import Composition, text_alone
from whiten_export.sources.model import TokenModel
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.manifest import Pooling, Side
from whiten_runtime.bundle.parity import GATES, compare
from whiten_runtime.errors import ParityError
from whiten_runtime.files.replacing import filling, replacing, written_as
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import load_graph
from whiten_runtime.inference.options import Prompts
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter

_GRAPH_FILE = "model.onnx"
_CHECKED_TEXTS = 12
_ELSEWHERE = "another XDG_CACHE_HOME"


@dataclass(frozen=True)
class LayerGraph:
    folder: Path
    layers: tuple[int, ...]
    pooling: Pooling
    width: int  # dimensions of a vector, d
    pad_token_id: int
    max_seq_length: int
    truncation_side: Side
    prompts: Prompts

    @property
    def path(self) -> Path:
        return self.folder / _GRAPH_FILE

    def embedder(self, options: SessionOptions) -> Embedder:
        tokenizer = Tokenizer(self.folder / TOKENIZER_FILE, self.max_seq_length, self.truncation_side)
        return load_graph(self.path, tokenizer, self.pad_token_id, options, LAYERS_OUTPUT, self.prompts)

    def split(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Reshape rows of the graph's output to [texts, layers, d]."""
        return rows.reshape(len(rows), len(self.layers), self.width)


@dataclass(frozen=True)
class LayerVectors:
    graph: LayerGraph
    rows: dict[str, int]
    table: NDArray[np.float32]  # [texts, layers, d]

    def mean(self, layers: tuple[int, ...], texts: Iterable[str] | None = None) -> NDArray[np.float64]:
        """Return the mean of some layers' vectors of some texts, or of all, [n, d]."""
        rows = list(self.rows.values()) if texts is None else [self.rows[text] for text in texts]
        places = [self.graph.layers.index(layer) for layer in layers]
        return np.asarray(self.table[np.ix_(rows, places)].mean(axis=1, dtype=np.float64))


def open_graph(
    model: TokenModel,
    name: str,
    layers: tuple[int, ...],
    pooling: Pooling,
    length: int,
    prompts: Prompts,
    cache: Path,
    options: SessionOptions,
    report: Reporter,
) -> LayerGraph:
    """Return the graph of all layers from the cache; make and check it if it is not there."""
    config = sorted(model.client_config.items())
    record = model.record
    made_of = (record.weights_sha256, record.network_sha256, record.revision, config, model.tokenizer.json)
    side, prompt = model.tokenizer.truncation_side, prompts.resolve()
    parts = repr((version("whiten"), made_of, layers, pooling, length, side, prompt, prompts.pooled))
    key = hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    folder = cache / f"{name.replace('/', '--')}-{key}"
    width, pad = Composition(layers, pooling).pooled_width(record.hidden_size), model.tokenizer.pad_token_id
    graph = LayerGraph(folder / "graph", layers, pooling, width, pad, length, side, prompts)
    if graph.path.is_file():
        return graph
    report.stage(f"making a graph of {record.model_type}, layers {', '.join(map(str, layers))}")
    with written_as(folder, _ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=folder, prefix=".graph-")
    with temporary:
        with filling(Path(temporary.name), folder, _ELSEWHERE):
            made = replace(graph, folder=Path(temporary.name) / "graph")
            made.folder.mkdir()
            write_layers(model, made)
            report.stage("checking every layer against the reference")
            check_layers(model, made, options)
        with written_as(folder, _ELSEWHERE):
            shutil.rmtree(graph.folder, ignore_errors=True)
            made.folder.rename(graph.folder)
    return graph


def write_layers(model: TokenModel, graph: LayerGraph) -> None:
    write_tokenizer(graph.folder, model.tokenizer, graph.max_seq_length)
    hidden = model.hidden_states(graph.layers, graph.pooling)
    together = layers_graph(hidden, graph.layers, graph.pooling, graph.width, graph.prompts.pooled)
    lower_attention(together, graph.max_seq_length)
    save_graph(together, graph.path)


def check_layers(model: TokenModel, graph: LayerGraph, options: SessionOptions) -> None:
    """Raise a ParityError if a layer differs from the model's reference on a dozen texts."""
    texts = probe_texts(min(graph.max_seq_length, 64))[1 : _CHECKED_TEXTS + 1]
    with graph.embedder(options) as embedder:
        tokenized = embedder.tokenize(texts, embedder.options)
        got = graph.split(embedder.run(tokenized, embedder.options))
    rows = [model.tokenizer.plain(row) for row in tokenized.ids]
    reference = model.reference(graph.layers, graph.pooling)
    wanted = np.stack([_alone(reference.pooled, row, tokenized.prompt_tokens, graph) for row in rows], axis=1)
    for number, layer in enumerate(graph.layers):
        agreement = compare(got[:, number], wanted[number])
        if not GATES["fp32"].passes(agreement):
            raise ParityError(
                f"layer {layer} with {graph.pooling} pooling is not what {reference.name} computes: {agreement}; "
                f"wanted {GATES['fp32']}; no vectors were kept"
            )


def _alone(pooled: Callable[..., np.ndarray], ids: Sequence[int], left_out: int, graph: LayerGraph) -> np.ndarray:
    if not ids:
        return np.zeros((len(graph.layers), graph.width))
    return pooled(*text_alone(ids, left_out))[:, 0]


def embed_layers(graph: LayerGraph, texts: Sequence[str], options: SessionOptions, report: Reporter) -> LayerVectors:
    """Open the vectors of distinct texts; embed the texts first if their file is not in the cache."""
    order = sorted(texts, key=lambda text: (-len(text), text))  # neighbours of similar length need little padding
    parts = repr((order, options.providers))  # each device rounds in its own way
    digest = hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    path = graph.folder.parent / f"texts-{digest}.npy"
    shape = (len(order), len(graph.layers), graph.width)
    if not path.is_file():
        report.stage(f"embedding {len(order):,} sentences, {len(graph.layers)} layers at once, in {path}")
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        with (
            graph.embedder(options) as embedder,
            report.bar("texts", len(order)) as advance,
            replacing(path, _ELSEWHERE) as file,
        ):
            write_array_header_2_0(file, header)
            for _, rows in embedder.windows(order, advance=advance):
                file.write(np.ascontiguousarray(rows, "<f4").data)
    return LayerVectors(graph, {text: row for row, text in enumerate(order)}, np.load(path, mmap_mode="r"))
