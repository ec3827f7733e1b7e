"""Export a model of the catalogue without PyTorch: its graph and its vectors were recorded with PyTorch, and are here.

A recording has no weights. Those of the checkpoint are put into the graph, if its weights are the same to the last bit
and its settings say the same, and the finished bundle is compared with the recorded vectors, as an export compares it
with PyTorch's.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from safetensors.numpy import load_file

from whiten_export.graph.build import HiddenStates
from whiten_export.proof.gate import Case, PublishedVectors
from whiten_export.proof.reference import Float64Array, Reference
from whiten_export.sources.checkpoint import (
    MODULES_FILE,
    TRANSFORMER_CONFIGS,
    Checkpoint,
    hash_tensor,
    open_tensors,
    read_json,
    source_record,
)
from whiten_export.sources.checks import read_tokenizer_config
from whiten_export.sources.model import TokenModel, WeightCounts, parameters_sha256
from whiten_export.sources.onnx_encoder import file_tokenizer
from whiten_export.sources.tokenizer import tokenizer_sha256
from whiten_models.catalogue import recording_folder
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.errors import WhitenError, from_clone

RECORDING_FILE, GRAPH_FILE, VECTORS_FILE = "recording.json", "graph.onnx", "vectors.safetensors"
"""Names of the files of a recording."""

_SETTINGS = (
    *("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *(MODULES_FILE, "config_sentence_transformers.json", *TRANSFORMER_CONFIGS),
)
"""Files of a checkpoint whose settings decide its graph, its tokens or its vectors; modules have a config.json too."""

_SAYS_NOTHING = frozenset(
    (
        *("_name_or_path", "name_or_path", "special_tokens_map_file", "tokenizer_file"),
        *("transformers_version", "__version__", "dtype", "torch_dtype"),
    )
)
"""Settings that change nothing about an export in float32."""


class Weight(msgspec.Struct, frozen=True, omit_defaults=True):
    """Says which tensor of the checkpoint an initialiser of the graph is."""

    tensor: str
    transposed: bool = False


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an export of a network that was recorded: what PyTorch and transformers said about it."""

    versions: dict[str, str]  # versions of the programs that only the recording needed, such as torch
    reference: str  # name of the reference of the vectors
    published: str  # name of the program that the model was published for
    layers: tuple[int, ...]  # hidden states that the graph computes
    pooling: Pooling  # pooling of the vectors
    max_length: int  # maximum number of tokens of a text
    settings: dict[str, Any]  # settings of the checkpoint by the names of its files
    tokenizer_sha256: str  # identity of its tokenizer
    network_sha256: str
    former_network_sha256: str
    parameters: tuple[str, ...]  # tensors of the checkpoint in the order of the network's modules
    parameters_sha256: str  # SHA-256 of their shapes and numbers, and of the modules behind the pooling
    weights: dict[str, Weight]  # which of them the initialisers of the graph are
    positions: int | None
    stated_positions: int | None
    weight_counts: tuple[int, int, int]
    client_config: dict[str, Any]


def read_settings_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the settings of a checkpoint by the names of its files, without those that change nothing."""
    root = checkpoint.root or checkpoint.directory
    steps = checkpoint.authors.steps if checkpoint.authors else ()
    files = [root / name for name in _SETTINGS] + [step.folder / "config.json" for step in steps]
    settings: dict[str, Any] = {}
    for file in sorted(set(files)):
        if file.is_file():
            content = read_json(file)
            if isinstance(content, dict):
                content = {name: value for name, value in content.items() if name not in _SAYS_NOTHING}
            settings[file.relative_to(root).as_posix()] = content
    return settings


def open_recorded(checkpoint: Checkpoint) -> "RecordedModel | None":
    """Open the recording of a checkpoint of the catalogue; return None if there is none.

    Raises:
        WhitenError: the checkpoint's settings or its tokenizer are not those of the recording.
    """
    folder = None if checkpoint.entry is None else recording_folder(checkpoint.entry)
    if folder is None or any(file.suffix != ".safetensors" for file in checkpoint.weights):
        return None
    return RecordedModel(checkpoint, folder)


class RecordedModel(TokenModel):
    """Reads a checkpoint of the catalogue, and takes the rest from its recording."""

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        recording = msgspec.json.decode((folder / RECORDING_FILE).read_bytes(), type=Recording)
        self.checkpoint, self._recording, self._folder = checkpoint, recording, folder
        self._check_settings()
        self.tokenizer = file_tokenizer(checkpoint, read_tokenizer_config(checkpoint))
        if tokenizer_sha256(self.tokenizer.json) != recording.tokenizer_sha256:
            raise self._differs("tokenizer.json")
        config = recording.client_config
        count: int = config["num_hidden_layers"]
        hashes = recording.network_sha256, recording.former_network_sha256
        width: int = config["hidden_size"]
        self.record = source_record(checkpoint, config["model_type"], count, width, network_sha256=hashes)
        self.layers, self.default_layers = tuple(range(count + 1)), recording.layers
        self.positions, self.stated_positions = recording.positions, recording.stated_positions
        self.vocab_size: int = config["vocab_size"]
        self.client_config = config
        self.versions = recording.versions

    def _check_settings(self) -> None:
        """Check that the checkpoint's files say what those of the recording said."""
        ours, recorded = read_settings_of(self.checkpoint), self._recording.settings
        for file in sorted(ours.keys() | recorded.keys()):
            here, there = ours.get(file, {}), recorded.get(file, {})
            if here != there:
                raise self._differs(f"{file}{_difference(here, there)}")
        if self.checkpoint.authors is not None and self.checkpoint.authors.left_out:
            raise self._differs("list of modules")

    def _differs(self, what: str) -> WhitenError:
        return _needs_torch(f"'{self.checkpoint.model}' has another {what} than the one that was recorded for exports")

    def check_choice(self, layers: tuple[int, ...], pooling: Pooling, max_length: int) -> None:
        """Check that the recording has the layers, the pooling and the length of an export."""
        recording, choice = self._recording, (layers, pooling, max_length)
        if choice != (recording.layers, recording.pooling, recording.max_length):
            layer = ", ".join(map(str, recording.layers))
            raise _needs_torch(
                f"without PyTorch, '{self.checkpoint.model}' can be exported only as it was recorded: layer {layer}, "
                f"pooling {recording.pooling}, max-length {recording.max_length}"
            )

    def count_weights(self, layers: tuple[int, ...]) -> WeightCounts:
        """Return the numbers of weights as they were counted."""
        return WeightCounts(*self._recording.weight_counts)

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Return the recorded graph with the weights of the checkpoint."""
        recording, authors = self._recording, self.checkpoint.authors
        self.check_choice(layers, pooling, recording.max_length)
        tensors: dict[str, NDArray[Any]] = {}
        for file in self.checkpoint.weights:
            opened = open_tensors(file)
            tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        sha256 = parameters_sha256(tensors_sha256(tensors, recording.parameters), authors.modules if authors else ())
        if sha256 != recording.parameters_sha256:
            raise self._differs("set of weights")
        self.record = msgspec.structs.replace(self.record, parameters_sha256=sha256)
        model = ir.load(self._folder / GRAPH_FILE)
        for name, weight in recording.weights.items():
            array = tensors[weight.tensor]
            array = np.ascontiguousarray(array.T) if weight.transposed else array
            model.graph.initializers[name].const_value = ir.tensor(array, name=name)
        return HiddenStates(model, tuple(model.graph.outputs))

    def reference(self, layers: tuple[int, ...], pooling: Pooling) -> Reference:
        """Return the recorded vectors as the reference."""
        self.check_choice(layers, pooling, self._recording.max_length)
        name, _, precision = self._recording.reference.partition(",")
        return RecordedReference(f"{name} (recorded),{precision}", self._rows)

    def published(self, cases: Sequence[Case], max_seq_length: int | None) -> PublishedVectors | None:
        """Return the recorded vectors of the program that the model was published for."""
        vectors = (np.stack([self._rows.published(ids, case.left_out) for ids in case.ids]) for case in cases)
        return PublishedVectors(self._recording.published, tuple(vectors))

    @cached_property
    def _rows(self) -> "RecordedRows":
        return RecordedRows(self._folder / VECTORS_FILE)


def _difference(here: Any, there: Any) -> str:
    """Return the names of the settings that differ, in brackets; nothing where these are no settings by name."""
    if not isinstance(here, dict) or not isinstance(there, dict):
        return ""
    names = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
    return f" ({', '.join(names)})"


def _needs_torch(why: str) -> WhitenError:
    return WhitenError(f"{why}; install PyTorch {from_clone('export')}")


def tensors_sha256(tensors: Mapping[str, NDArray[Any]], names: Sequence[str]) -> str:
    """Compute the SHA-256 of the shapes and numbers of tensors by their names, as far as they are there."""
    digest = hashlib.sha256()
    for name in names:
        if name in tensors:
            hash_tensor(digest, tensors[name].shape, np.ascontiguousarray(tensors[name]).view(np.uint8).data)
    return digest.hexdigest()


class RecordedRows:
    """Holds the vectors of texts by their token ids."""

    def __init__(self, file: Path) -> None:
        tensors = load_file(file)
        ends = np.cumsum(tensors["tokens"])[:-1]
        rows = zip(np.split(tensors["ids"], ends), tensors["left_out"].tolist(), strict=True)
        self._place = {(tuple(ids.tolist()), left_out): place for place, (ids, left_out) in enumerate(rows)}
        self._pooled, self._published = tensors["pooled"], tensors["published"]

    def pooled(self, ids: Sequence[int], left_out: int) -> Float64Array | None:
        """Return the pooled hidden states of a text, [layers, d]; None if it was not recorded."""
        place = self._place.get((tuple(ids), left_out))
        return None if place is None else self._pooled[place]

    def published(self, ids: Sequence[int], left_out: int) -> Float64Array:
        """Return the vector of a text by the program that the model was published for, [k]."""
        vector: Float64Array = self._published[self._place[tuple(ids), left_out]].astype(np.float64)
        return vector


class RecordedReference(Reference):
    """Looks up the pooled hidden states of texts that were recorded."""

    def __init__(self, name: str, rows: RecordedRows) -> None:
        self.name, self._rows = name, rows

    def pooled(self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]) -> Float64Array:
        """Return the pooled hidden states of a text, [layers, 1, d]."""
        (ids,), left_out = input_ids.tolist(), int((attention_mask == 2).sum())
        states = self._rows.pooled(ids, left_out)
        if states is None:
            raise _needs_torch(f"no vector of a text of {len(ids)} tokens was recorded, as of other prompts or texts")
        return states[:, None]
