"""Take hidden states from an ONNX encoder, as optimum writes it, without PyTorch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from tokenizers import Tokenizer

from whiten_export.graph.build import HiddenStates, describe_input, follow_link, read_graph, strip
from whiten_export.graph.ends import INPUTS, feed_of, replace_inputs
from whiten_export.graph.poolings import POOLINGS, pool
from whiten_export.proof.probe_texts import probe_texts
from whiten_export.proof.reference import Float64Array, Head, Reference, text_alone
from whiten_export.sources.checkpoint import Authors, Checkpoint, read_settings, recommended_layers, source_record
from whiten_export.sources.checks import add_ends, read_tokenizer_config, words_note
from whiten_export.sources.families import batch_limit, family_of, positions_before, usable_positions
from whiten_export.sources.model import SENTENCE_VECTOR, TokenModel, WeightCounts
from whiten_export.sources.own_code import ignored_code
from whiten_export.sources.tokenizer import (
    UNSET_LENGTH,
    SourceTokenizer,
    describe_tokenizer,
    lower_case,
    read_backend,
)
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.graph import OUTPUT, UNWHITENED_OUTPUT, scan_graph, unwanted
from whiten_runtime.bundle.manifest import Pooling, Side
from whiten_runtime.bundle.parity import GATES, compare
from whiten_runtime.errors import UnsafeModelError, UsageError, WhitenError, from_clone
from whiten_runtime.inference.engine import ForkSafeSession
from whiten_runtime.ort.session import SessionOptions, create_session

_OURS = frozenset({OUTPUT, UNWHITENED_OUTPUT, "last_hidden_state"})
"""Names that a finished graph gives to its own values."""

_OLDEST_OPSET = 18


def read_encoder(path: Path) -> ir.Model:
    """Read a graph, in opset 18 or newer, without metadata for debugging."""
    try:
        model = read_graph(path)
    except (ValueError, OSError) as error:
        raise WhitenError(f"{path}: cannot be read ({' '.join(str(error).split())}); export it again") from error
    opset = model.graph.opset_imports[""]
    if opset < _OLDEST_OPSET:
        model = _convert(path, opset)
    _load_attributes(model)
    strip(model)
    return model


def _convert(path: Path, opset: int) -> ir.Model:
    import onnx
    from onnx import version_converter

    try:
        return ir.from_proto(version_converter.convert_version(onnx.load(path), _OLDEST_OPSET))
    except Exception as error:  # the converter's exceptions share no base class
        reason = " ".join(str(error).split())[:200]
        raise WhitenError(
            f"{path}: has opset {opset} and cannot be converted to {_OLDEST_OPSET} ({reason}); "
            f"export it again with --opset {_OLDEST_OPSET}"
        ) from error


def _load_attributes(model: ir.Model) -> None:
    """Load tensors of node attributes that are stored beside the graph: saving moves only initialisers."""
    for node in model.graph.all_nodes():
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                content = follow_link(attribute.value).numpy().copy()
                node.attributes[name] = ir.AttrTensor(name, ir.tensor(content, name=attribute.value.name))


_LAST = ("last_hidden_state", "token_embeddings")
"""Outputs that hold the hidden state of the last layer, as optimum and sentence-transformers name them."""

_LAYER_PREFIX = "hidden_states."

_BY_BATCH = "DynamicQuantize"
"""How the operators of the ONNX standard and of onnxruntime begin that take one scale from all texts of a batch."""

_NO_SENTENCE = ("pooler_output", "logits")
"""Outputs of one vector a text that are no sentence vectors: BERT's pooler, and the scores of a classifier."""

_SENTENCES, _TOKENS = slice(4, 12), 8
"""Probes by which poolings of states are compared with a graph's own sentence vectors, and tokens of each; all probes
are compared with the pooling that they have in common."""

_CONFIG_NAMES = {
    "num_hidden_layers": ("num_hidden_layers", "n_layers", "num_layers", "n_layer"),
    "hidden_size": ("hidden_size", "dim", "d_model", "emb_dim", "n_embd"),
    "vocab_size": ("vocab_size", "n_words"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
    "original_max_position_embeddings": ("original_max_position_embeddings",),
    "rope_parameters": ("rope_parameters", "rope_scaling"),
}
"""Names in `config.json` that architectures use for the same value."""


class OnnxEncoder(TokenModel):
    """Reads an encoder from a directory with `model.onnx`, `config.json` and `tokenizer.json`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._path = checkpoint.weights[0]
        content = read_settings(checkpoint.directory / "config.json")
        config = _config(content, self._path)
        count = config.num_hidden_layers
        scan = scan_graph(self._path)
        if dynamic := sorted(name for _, name in scan.operators if name.startswith(_BY_BATCH)):
            raise WhitenError(
                f"{self._path}: quantises by batch ({dynamic[0]}), so a text's vector would depend on the texts beside "
                "it; export the model unquantised, and let --precision int8 quantise it"
            )
        if (what := unwanted(scan, "cpu")) is not None:
            raise UnsafeModelError(
                f"{self._path}: has {what}; export the model without optimisations and without control flow"
            )
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
            outputs = ", ".join(f"{value.name}, {value.type} {value.shape}" for value in session.get_outputs())
            raise UsageError(
                f"{self._path}: gives {outputs}; wanted {', '.join(_LAST)} or {_LAYER_PREFIX}N, float32 "
                "[batch_size, sequence_length, d]"
            )
        self.own_outputs = _text_outputs(session)
        self.tokenizer = file_tokenizer(checkpoint, read_tokenizer_config(checkpoint))
        if checkpoint.authors is None and (sentence := list(filter(SENTENCE_VECTOR.search, self.own_outputs))):
            authors = self._of_graph(session, sentence[0], count)
            checkpoint = replace(checkpoint, authors=authors, sentence_similarity=True)
        self.checkpoint = checkpoint
        self.record = source_record(checkpoint, config.model_type, count, config.hidden_size, ignored_code(checkpoint))
        self.layers = tuple(sorted(self._outputs))
        recommended = recommended_layers(checkpoint, count)
        self.default_layers = tuple(layer for layer in recommended if layer in self.layers) or self.layers[-1:]
        self.stated_positions = usable_positions(config, positions_before(config))
        limited = _has_table(read_graph(self._path), config.max_position_embeddings)
        self.positions = self.stated_positions if limited else None
        self.batch_limit = batch_limit(config)
        self.vocab_size: int = config.vocab_size
        self.client_config: Mapping[str, Any] = content | {
            "hidden_size": config.hidden_size,
            "num_hidden_layers": count,
            "architectures": content.get("architectures") or ["AutoModel"],
        }
        self.supported = family_of(config.model_type).supported

    def _of_graph(self, session: Any, output: str, layer: int) -> Authors | None:
        """Return how the graph makes its own sentence vectors; None if not by a pooling of its last states alone."""
        if layer not in self._outputs:
            return None
        inputs, pairs = [value.name for value in session.get_inputs()], []
        for ids in Tokenizer.from_str(self.tokenizer.json).encode_batch(list(probe_texts(1)[_SENTENCES])):
            rows, mask = text_alone(self.tokenizer.plain(ids.ids[:_TOKENS]))
            state, vector = session.run([self._outputs[layer], output], feed_of(inputs, rows, mask))
            pairs.append((state, mask, vector[0]))
        theirs = np.stack([vector for *_, vector in pairs])
        if not np.isfinite(theirs).all():
            return None
        for mode in (mode for mode, row in POOLINGS.items() if row.weights is not None):
            ours = np.concatenate([pool([state], mask, mode)[0] for state, mask, _ in pairs])
            for normalize in (False, True):
                vectors = Head(None, normalize)(ours)
                if vectors.shape == theirs.shape and GATES["fp32"].passes(compare(vectors, theirs)):
                    return Authors(pooling=mode, stated_by="graph", normalize=normalize)
        return None

    def count_weights(self, layers: tuple[int, ...]) -> WeightCounts:
        """Count the weights by the size of the files, as if all were float32 and all layers needed them."""
        count = sum(file.stat().st_size for file in self.checkpoint.weights) // 4
        return WeightCounts(count, count)

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Return the graph with the chosen hidden states as outputs, and token ids and a mask as its only inputs."""
        model = read_encoder(self._path)
        by_name = {value.name: value for value in model.graph.outputs}
        model.graph.outputs[:] = [by_name[self._outputs[layer]] for layer in layers]
        for value in (value for node in model.graph for value in node.outputs if value.name in _OURS):
            value.name = f"source.{value.name}"
        replace_inputs(model)
        for value in model.graph.inputs:
            describe_input(value)
        for layer, value in zip(layers, model.graph.outputs, strict=True):
            value.name = f"source.{_LAYER_PREFIX}{layer}"
        return HiddenStates(model, tuple(model.graph.outputs))

    def reference(self, layers: tuple[int, ...], pooling: Pooling) -> Reference:
        """Return the original graph as the reference, in its own precision."""
        return OnnxReference(self._path, [self._outputs[layer] for layer in layers], pooling)

    def own_vectors(self, output: str, rows: Sequence[Sequence[int]]) -> Float64Array:
        """Return the vectors of an output of the original graph, [n, k], each text computed alone."""
        session = ForkSafeSession(lambda: create_session(self._path, SessionOptions()))
        inputs = [value.name for value in session.get().get_inputs()]
        ids = (np.asarray([row], np.int64) for row in rows)
        vectors = [session.run([output], feed_of(inputs, row, np.ones_like(row)))[0] for row in ids]
        return np.concatenate(vectors).astype(np.float64)


class OnnxReference(Reference):
    """Computes the hidden states of an unchanged graph, pooled by numpy in float64."""

    def __init__(self, path: Path, outputs: list[str], pooling: Pooling) -> None:
        import onnxruntime

        self._session = ForkSafeSession(lambda: create_session(path, SessionOptions()))
        self._inputs = [value.name for value in self._session.get().get_inputs()]
        self._outputs, self._pooling = outputs, pooling
        self.name = f"onnxruntime {onnxruntime.__version__}, the original graph"

    def pooled(self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]) -> Float64Array:
        """Return the pooled hidden states of each layer, [layers, batch_size, d]."""
        states = self._session.run(self._outputs, feed_of(self._inputs, input_ids, np.minimum(attention_mask, 1)))
        return pool(states, attention_mask, self._pooling)


def _layers(session: Any, count: int) -> dict[int, str]:
    """Return the names of the outputs that are hidden states, by their layer."""
    outputs: dict[int, str] = {}
    for value in session.get_outputs():
        if value.type != "tensor(float)" or len(value.shape) != 3:
            continue
        if value.name in _LAST:
            outputs.setdefault(count, value.name)
        elif value.name.startswith(_LAYER_PREFIX) and value.name.removeprefix(_LAYER_PREFIX).isdecimal():
            outputs[int(value.name.removeprefix(_LAYER_PREFIX))] = value.name
    return outputs


def _has_table(model: ir.Model, positions: int | None) -> bool:
    """Return whether a graph reads an array that is of this size along an axis, and no factor of a product."""
    values = [node.outputs[0] for node in model.graph.all_nodes() if node.op_type == "Constant"]
    for value in (*model.graph.initializers.values(), *values):
        tensor = ir.convenience.get_const_tensor(value)
        looked_up = any(use.node.op_type not in ("MatMul", "Gemm") for use in value.uses())
        if tensor is not None and looked_up and tensor.shape.rank() > 1 and positions in tensor.shape.numpy():
            return True
    return False


def _text_outputs(session: Any) -> tuple[str, ...]:
    """Return the names of the outputs that are one vector a text, and may be the model's own sentence vector."""
    values = (value for value in session.get_outputs() if value.type == "tensor(float)" and len(value.shape) == 2)
    return tuple(value.name for value in values if value.name not in _NO_SENTENCE)


def _config(content: dict[str, Any], path: Path) -> Any:
    """Return the values of `config.json` that an export needs, under one name each."""
    known = {"model_type": content.get("model_type", "unknown"), "pad_token_id": content.get("pad_token_id")}
    for name, spellings in _CONFIG_NAMES.items():
        known[name] = next((content[spelling] for spelling in spellings if spelling in content), None)
    for name in ("num_hidden_layers", "hidden_size", "vocab_size"):
        if not isinstance(known[name], int):
            raise UsageError(f"{path.parent}: config.json has no {name}; wanted the config of the exported model")
    return SimpleNamespace(**known)


def file_tokenizer(checkpoint: Checkpoint, described: Mapping[str, Any]) -> SourceTokenizer:
    """Read `tokenizer.json`; `own_ids` uses transformers' tokenizer where it is installed, to check this against."""
    path = checkpoint.directory / TOKENIZER_FILE
    if not path.is_file():
        return _by_transformers(checkpoint)
    specials = {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in described.items()
        if name.endswith("_token") and isinstance(token, (str, dict))
    }
    backend = read_backend(path)
    notes = (words_note(checkpoint.directory, backend), add_ends(backend, described, {}))
    if checkpoint.authors is not None and checkpoint.authors.do_lower_case:
        lower_case(backend)
    text = backend.to_str()
    stored = (backend.truncation or {}).get("direction")
    side: Side = "left" if described.get("truncation_side", stored) == "left" else "right"
    numbers = (backend.token_to_id(specials[name]) for name in ("pad_token", "eos_token") if name in specials)
    pad = next((number for number in numbers if number is not None), 0)
    specials["pad_token"] = backend.id_to_token(pad)
    stated = described.get("model_max_length")
    length = int(stated) if isinstance(stated, int | float) and stated < UNSET_LENGTH else None

    def own_ids(texts: Sequence[str], max_length: int) -> list[list[int]]:
        own = Tokenizer.from_str(text)
        own.no_padding()
        own.enable_truncation(max_length, direction=side)
        return [encoding.ids for encoding in own.encode_batch(list(texts))]

    try:
        judge = _by_transformers(checkpoint).own_ids
    except WhitenError:  # transformers is not installed, or does not know the architecture
        judge = own_ids
    return SourceTokenizer(text, judge, pad, specials, length, truncation_side=side, notes=tuple(filter(None, notes)))


def _by_transformers(checkpoint: Checkpoint) -> SourceTokenizer:
    try:
        from whiten_export.sources.network import load_tokenizer, quiet
    except ImportError as error:
        raise WhitenError(
            f"'{checkpoint.model}' has no {TOKENIZER_FILE}, and making one needs {error.name}; install it "
            f"{from_clone('export')}"
        ) from error
    with quiet():
        return describe_tokenizer(checkpoint, load_tokenizer(checkpoint, trust_remote_code=False))
