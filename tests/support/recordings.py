"""Record exports for models/whiten_models/recordings, with PyTorch: python -m support.recordings minilm

An export of the model runs with its network watched: what it traces, and every vector that it asks PyTorch and
sentence-transformers for, is written without the weights. Record again when tests/export/sources/test_recorded.py
fails: the tracing, the texts of the proof, or the versions of constraints.txt changed.
"""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
from safetensors.numpy import load_file, save_file
from torch import nn

from whiten_export import draft
from whiten_export.export import export_bundle
from whiten_export.graph.build import HiddenStates
from whiten_export.proof.gate import Case, PublishedVectors
from whiten_export.proof.reference import Reference
from whiten_export.recipe import Recipe
from whiten_export.sources import recorded
from whiten_export.sources.checkpoint import Checkpoint
from whiten_export.sources.model import TokenModel
from whiten_export.sources.network import UNUSED
from whiten_export.sources.pytorch import PyTorchModel
from whiten_runtime.bundle.manifest import Pooling

PROGRAMS = ("torch", "transformers", "sentence-transformers", "onnxscript")


class WatchedReference(Reference):
    """Keeps what a reference computes, by the token ids."""

    def __init__(self, reference: Reference, rows: dict[tuple[tuple[int, ...], int], Any]) -> None:
        self.name, self._reference, self._rows = reference.name, reference, rows
        self.side_by_side, self.close = reference.side_by_side, reference.close  # type: ignore[method-assign]

    def pooled(self, input_ids: Any, attention_mask: Any) -> Any:
        """Compute and keep."""
        states = self._reference.pooled(input_ids, attention_mask)
        self._rows[tuple(input_ids[0].tolist()), int((attention_mask == 2).sum())] = states[:, 0]
        return states


class WatchedModel(PyTorchModel):
    """Keeps what an export asks of a network."""

    def __init__(self, checkpoint: Checkpoint, *arguments: Any) -> None:
        super().__init__(checkpoint, *arguments)
        self.rows: dict[tuple[tuple[int, ...], int], Any] = {}
        self.by_authors: dict[tuple[tuple[int, ...], int], Any] = {}

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Write the graph without weights, and trace."""
        hidden = super().hidden_states(layers, pooling)
        self.layers_and_pooling = layers, pooling
        assert self._loaded is not None
        self.parameters = parameters_of(self._loaded, self.checkpoint)
        self.graph_bytes, self.weights = without_weights(hidden.model, self.parameters)
        return hidden

    def reference(self, layers: tuple[int, ...], pooling: Pooling) -> Reference:
        """Watch the reference."""
        reference = WatchedReference(super().reference(layers, pooling), self.rows)
        self.reference_name = reference.name
        return reference

    def published(self, cases: Sequence[Case], max_seq_length: int | None) -> PublishedVectors | None:
        """Keep the vectors of sentence-transformers."""
        published = super().published(cases, max_seq_length)
        assert published is not None
        self.published_name = published.name
        for case, vectors in zip(cases, published.vectors, strict=False):
            self.by_authors |= {(tuple(ids), case.left_out): row for ids, row in zip(case.ids, vectors, strict=True)}
        return published


def parameters_of(network: nn.Module, checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return the parameters that an export uses, in their order, by the names of the checkpoint's tensors."""
    tensors = {name: array for file in checkpoint.weights for name, array in load_file(file).items()}
    names = {(array.shape, array.tobytes()): name for name, array in tensors.items()}
    used = [parameter.numpy() for name, parameter in network.named_parameters() if not UNUSED.search(name)]
    return {names[array.shape, array.tobytes()]: array.copy() for array in used}


def without_weights(model: ir.Model, parameters: Mapping[str, np.ndarray]) -> tuple[bytes, dict[str, recorded.Weight]]:
    """Return a graph without its parameters, and the tensor of each; other constants stay in it."""
    known = {(array.shape, array.tobytes()): recorded.Weight(name) for name, array in parameters.items()}
    for name, array in parameters.items():
        if array.ndim == 2:
            known.setdefault((array.T.shape, array.T.tobytes()), recorded.Weight(name, True))
    copied = ir.from_proto(ir.to_proto(model))
    weights = {}
    for name, value in copied.graph.initializers.items():
        assert value.const_value is not None
        array = value.const_value.numpy()
        if (weight := known.get((array.shape, array.tobytes()))) is None:
            assert array.nbytes < 1 << 16, f"{name} {array.shape} is no tensor of the checkpoint"
            continue
        weights[name] = weight
        value.const_value = ir.ExternalTensor(
            "weights", 0, array.nbytes, value.const_value.dtype, shape=value.const_value.shape, name=name, base_dir="."
        )
    return ir.to_proto(copied).SerializeToString(deterministic=True), weights


def record(name: str, folder: Path) -> None:
    """Export a model of the catalogue as published, and write its recording."""
    watched: list[WatchedModel] = []

    def open_watched(checkpoint: Checkpoint, trust: bool, device: str, report: Any) -> TokenModel:
        watched.append(WatchedModel(checkpoint, trust, device))
        return watched[0]

    draft.open_model = open_watched  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as temporary:
        manifest = export_bundle(Recipe(name), Path(temporary, name)).manifest
    (model,), source = watched, manifest.source
    layers, pooling = model.layers_and_pooling
    recording = recorded.Recording(
        versions={program: version(program) for program in PROGRAMS},
        reference=model.reference_name,
        published=model.published_name,
        layers=layers,
        pooling=pooling,
        max_length=manifest.max_seq_length,
        settings=recorded.read_settings_of(model.checkpoint),
        tokenizer_sha256=manifest.tokenizer_sha256,
        network_sha256=str(source.network_sha256),
        former_network_sha256=str(source.former_network_sha256),
        parameters=tuple(model.parameters),
        parameters_sha256=str(source.parameters_sha256),
        weights=model.weights,
        positions=model.positions,
        stated_positions=model.stated_positions,
        weight_counts=astuple(model.count_weights(layers)),
        client_config=json.loads(json.dumps(dict(model.client_config))),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / recorded.RECORDING_FILE).write_bytes(msgspec.json.encode(recording, order="deterministic") + b"\n")
    (folder / recorded.GRAPH_FILE).write_bytes(model.graph_bytes)
    rows = sorted(model.rows)
    nothing = np.full(len(next(iter(model.by_authors.values()))), np.nan)
    arrays = {
        "ids": np.concatenate([np.asarray(ids, np.int32) for ids, _ in rows]),
        "tokens": np.asarray([len(ids) for ids, _ in rows], np.int32),
        "left_out": np.asarray([left_out for _, left_out in rows], np.int32),
        "pooled": np.stack([model.rows[row] for row in rows]),
        "published": np.stack([model.by_authors.get(row, nothing) for row in rows]).astype(np.float32),
    }
    save_file(arrays, folder / recorded.VECTORS_FILE)
    for file in sorted(folder.iterdir()):
        print(f"{file}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    place = Path(__file__).parents[2] / "models" / "whiten_models" / "recordings"
    for model_name in sys.argv[1:]:
        record(model_name, place / model_name)
