"""Take hidden states from an ONNX encoder, as optimum writes it, without PyTorch."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_export.graph.builder import HiddenStates, describe_input
from whiten_export.proof.gate import Request
from whiten_export.proof.reference import Float64Array, Reference, pool
from whiten_export.sources.checkpoints.checkpoint import Checkpoint, recommended_layers, source_record
from whiten_export.sources.families import family_of, usable_positions
from whiten_export.sources.onnx_files.onnx_graph import (
    INPUTS,
    check_safe,
    feed_of,
    make_room,
    read_graph,
    replace_inputs,
)
from whiten_export.sources.tokenizers import file_tokenizer
from whiten_runtime.bundle.records import Pooling
from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.ort.fork_safe import ForkSafeSession
from whiten_runtime.ort.session import SessionOptions, create_session

_LAST = ("last_hidden_state", "token_embeddings")
"""Outputs that hold the hidden state of the last layer, as optimum and sentence-transformers name them."""

_LAYER_PREFIX = "hidden_states."

_CONFIG_NAMES = {
    "num_hidden_layers": ("num_hidden_layers", "n_layers", "num_layers", "n_layer"),
    "hidden_size": ("hidden_size", "dim", "d_model", "emb_dim", "n_embd"),
    "vocab_size": ("vocab_size", "n_words"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
}
"""Names in `config.json` that architectures use for the same value."""


class OnnxEncoder:
    """Reads an encoder from a directory with `model.onnx`, `config.json` and `tokenizer.json`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._path = checkpoint.weights[0]
        content = _read_json(checkpoint.directory / "config.json")
        config = _config(content, self._path)
        count = config.num_hidden_layers
        check_safe(self._path)
        session = create_session(self._path, SessionOptions())
        inputs = session.get_inputs()
        if unknown := {value.name for value in inputs} - INPUTS:
            raise UsageError(
                f"{self._path}: takes {', '.join(sorted(unknown))}, which token ids do not give; wanted an encoder "
                f"that takes {', '.join(sorted(INPUTS))}"
            )
        for value in inputs:
            if value.type != "tensor(int64)" or any(isinstance(size, int) for size in value.shape):
                raise UsageError(
                    f"{self._path}: takes {value.name} as {value.type} {value.shape}; wanted int64 of any size: export "
                    "it again with dynamic axes"
                )
        self._outputs = _layers(session, count)
        if not self._outputs:
            found = ", ".join(f"{value.name}, {value.type} {value.shape}" for value in session.get_outputs())
            raise UsageError(
                f"{self._path}: gives {found}; wanted {', '.join(_LAST)} or {_LAYER_PREFIX}N, float32 "
                "[batch_size, sequence_length, d]"
            )
        self.record = source_record(checkpoint, config.model_type, count, config.hidden_size)
        described = _read_json(checkpoint.directory / "tokenizer_config.json", optional=True)
        self.tokenizer = file_tokenizer(checkpoint, described)
        self.layers = tuple(sorted(self._outputs))
        recommended = recommended_layers(checkpoint, count)
        self.default_layers = tuple(layer for layer in recommended if layer in self.layers) or self.layers[-1:]
        self.positions = usable_positions(config)
        self.vocab_size: int = config.vocab_size
        self.client_config: Mapping[str, Any] = content | {
            "hidden_size": config.hidden_size,
            "num_hidden_layers": count,
            "architectures": content.get("architectures") or ["AutoModel"],
        }
        self.supported = family_of(config.model_type).supported

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Return the graph with the chosen hidden states as outputs, and token ids and a mask as its only inputs."""
        model = read_graph(self._checkpoint.weights)
        by_name = {value.name: value for value in model.graph.outputs}
        model.graph.outputs[:] = [by_name[self._outputs[layer]] for layer in layers]
        make_room(model.graph)
        replace_inputs(model)
        for value in model.graph.inputs:
            describe_input(value)
        for layer, value in zip(layers, model.graph.outputs, strict=True):
            value.name = f"source.{_LAYER_PREFIX}{layer}"
        return HiddenStates(model, tuple(model.graph.outputs))

    def reference(self, layers: tuple[int, ...], pooling: Pooling) -> Reference:
        """Return the original graph as the reference, in its own precision."""
        return OnnxReference(self._path, [self._outputs[layer] for layer in layers], pooling)

    def published(self, requests: Sequence[Request], max_seq_length: int) -> None:
        """Return None: sentence-transformers' own vectors need PyTorch weights."""


class OnnxReference:
    """Computes the hidden states of an unchanged graph, pooled by numpy in float64."""

    def __init__(self, path: Path, outputs: list[str], pooling: Pooling) -> None:
        import onnxruntime

        self._session = ForkSafeSession(lambda: create_session(path, SessionOptions()))
        self._inputs = [value.name for value in self._session.get().get_inputs()]
        self._outputs, self._pooling = outputs, pooling
        self.name = f"onnxruntime {onnxruntime.__version__}, the original graph"

    def side_by_side(self) -> AbstractContextManager[int]:
        """Yield that one thread may call `pooled` at a time."""
        return nullcontext(1)

    def pooled(self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]) -> Float64Array:
        """Return the pooled hidden states of each layer, [layers, batch_size, d]."""
        states = self._session.run(self._outputs, feed_of(self._inputs, input_ids, np.minimum(attention_mask, 1)))
        return pool(states, attention_mask, self._pooling)


def _layers(session: Any, count: int) -> dict[int, str]:
    """Return the names of the outputs that are hidden states, by their layer."""
    found: dict[int, str] = {}
    for value in session.get_outputs():
        if value.type != "tensor(float)" or len(value.shape) != 3:
            continue
        if value.name in _LAST:
            found.setdefault(count, value.name)
        elif value.name.startswith(_LAYER_PREFIX) and value.name.removeprefix(_LAYER_PREFIX).isdecimal():
            found[int(value.name.removeprefix(_LAYER_PREFIX))] = value.name
    return found


def _config(content: dict[str, Any], path: Path) -> Any:
    """Return the values of `config.json` that an export needs, under one name each."""
    known = {"model_type": content.get("model_type", "unknown"), "pad_token_id": content.get("pad_token_id")}
    for name, spellings in _CONFIG_NAMES.items():
        known[name] = next((content[spelling] for spelling in spellings if spelling in content), None)
    for name in ("num_hidden_layers", "hidden_size", "vocab_size"):
        if not isinstance(known[name], int):
            raise UsageError(f"{path.parent}: config.json has no {name}; wanted the config of the exported model")
    return SimpleNamespace(**known)


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WhitenError(f"{path}: cannot be read ({error}); export the model again") from error
    return content
