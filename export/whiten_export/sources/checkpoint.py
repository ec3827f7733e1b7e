"""Describe a pretrained model on disk: its files, how its authors make vectors, its record for the manifest.

A folder may hold weights that are not loaded, such as those of another precision, an older copy, or half a download:
these are chosen as transformers, peft and sentence-transformers choose them.

"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from msgspec import UNSET, UnsetType
from safetensors import SafetensorError, safe_open

from whiten_export.proof.reference import Composition
from whiten_models.catalogue import Entry
from whiten_runtime.bundle.graph import is_beside
from whiten_runtime.bundle.manifest import Pooling, Similarity, Source
from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.hub import CARD_FILE


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WhitenError(f"{path}: cannot be read ({error}); copy the model again") from None


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON file of settings by name."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise WhitenError(f"{path}: holds a {type(content).__name__}; wanted settings by name")
    return content


NETWORK_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Names of a network's whole weights, in the order in which transformers looks for them; an index of parts follows."""

ONNX_PLACES = ("model.onnx", "onnx/model.onnx")
"""Places of an ONNX graph in a folder, in the order in which it is looked for."""

WORD_FILES = (".txt", ".vec", ".gz", ".zip")
"""Endings of files of word vectors."""

ADAPTER_CONFIG = "adapter_config.json"

ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""Names of an adapter's weights, in the order in which peft looks for them."""

ADAPTERS_BELOW = 3
"""Number of folders below a network in which adapters are looked for: adapters/retrieval of jina-embeddings-v5 has two,
and one more if the network is in a folder of its own."""

HEADS = {"sparse_linear.pt": "sparse vectors", "colbert_linear.pt": "a vector for each token"}
"""Files of FlagEmbedding with heads beside the one for dense vectors, and what those give."""

MODULES_FILE = "modules.json"
"""Name of the list of modules in a folder of sentence-transformers."""

TRANSFORMER_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the file with length and casing of sentence-transformers' Transformer; older versions named it after the
architecture."""

TOKENIZER_FILES = ("vocab.*", "*.model", "*.spm", "*.tiktoken", "*.tokenizer", "bpe.codes")
"""Names of files that hold a tokenizer, besides those of JSON and of text."""

INDEX = ".index.json"
"""Suffix of the file that says in which parts weights are stored, after the name of whole weights."""


def network_weights(folder: Path, config: Mapping[str, Any], names: Collection[str] | None = None) -> tuple[Path, ...]:
    """Return the weight files of a network with a config, in the order of their names; none without any.

    `names` are those of the files in its folder, where the weights are not downloaded yet.
    """
    if names is None:
        names = {path.name for path in folder.iterdir() if path.is_file()}
    other = config.get("transformers_weights")  # a name in place of the usual ones
    candidates = [name for whole in NETWORK_WEIGHTS for name in (whole, whole + INDEX)] if other is None else [other]
    for name in candidates:
        if (path := _beside(folder, name, folder / "config.json")).name in names:
            return _parts(path, names) if name.endswith(INDEX) else (path,)
    return ()


def _parts(index: Path, names: Collection[str]) -> tuple[Path, ...]:
    weight_map = read_settings(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WhitenError(f"{index}: has no weight_map, which says where each weight is; copy the model again")
    parts = [_beside(index.parent, name, index) for name in sorted(set(map(str, weight_map.values())))]
    for part in parts:
        if part.name not in names:
            raise UsageError(f"{index}: weights are in '{part.name}', which is not there; copy the model again")
    return tuple(parts)


def _beside(folder: Path, name: object, file: Path) -> Path:
    if not isinstance(name, str) or not is_beside(name):
        raise WhitenError(f"{file}: weights are in {name!r}, which is not a file beside it")
    return folder / name


def hash_tensor(digest: "hashlib._Hash", shape: Sequence[int], content: Any) -> None:
    """Add the shape and the bytes of a tensor to a hash of parameters, without its name: names differ by version."""
    digest.update(str(tuple(shape)).encode())
    digest.update(content)


def open_tensors(file: Path) -> Any:
    """Open a file of safetensors, whose header is checked."""
    try:
        return safe_open(file, "numpy")
    except (OSError, SafetensorError) as error:
        raise WhitenError(f"{file}: is damaged, or no file of safetensors ({error}); copy the model again") from None


def tensor_names(file: Path) -> tuple[str, ...]:
    """Return the names of the tensors in a file of safetensors; none for a damaged one, whose loading says why."""
    try:
        opened: Any = safe_open(file, "numpy")
        return tuple(opened.keys())
    except (OSError, SafetensorError):
        return ()


def module_weights(folder: Path) -> Path:
    """Return the weight file of a module of sentence-transformers."""
    file = _first(folder, NETWORK_WEIGHTS)
    if file is None:
        raise WhitenError(f"{folder}: has no weights ({' or '.join(NETWORK_WEIGHTS)}); copy the model again")
    return file


def adapter_weights(folder: Path) -> Path | None:
    """Return the weight file of a LoRA adapter; None without one."""
    return _first(folder, ADAPTER_WEIGHTS)


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


Kind = Literal["transformers", "onnx", "words", "static"]


@dataclass(frozen=True)
class Step:
    """Names a module of sentence-transformers."""

    kind: str  # name of its class, without the class's place, which moved between versions, if it is one of theirs
    folder: Path  # folder of its files

    @property
    def name(self) -> str:
        """Return the name of the class without its place."""
        return self.kind.rsplit(".", 1)[-1]


@dataclass(frozen=True)
class Authors(Composition):
    """How a model's authors make the vector of a text."""

    layers: tuple[int, ...] = (-1,)  # indices into the hidden states; -1 is the last, however many there are
    # what says so: the files of a program, the outputs of an ONNX graph, or the catalogue
    stated_by: Literal["sentence-transformers", "model2vec", "graph", "catalogue"] = "catalogue"
    normalize: bool = False  # whether vectors are divided by their L2 norm at the end
    prompts: Mapping[str, str] = field(default_factory=dict)  # prompts by name
    default_prompt_name: str | None = None  # name of the prompt that texts get if none is asked for
    similarity_fn_name: Similarity = "cosine"  # similarity of two vectors
    matryoshka_dimensions: tuple[int, ...] = ()  # dimensions at which vectors may be cut, largest first
    max_length: int | None = None  # maximum number of tokens of a text; None if not stated
    do_lower_case: bool = False  # whether texts are lower-cased before they are tokenised
    steps: tuple[Step, ...] = ()  # modules of sentence-transformers in order, those of a route in place of a Router
    left_out: tuple[str, ...] = ()  # classes of modules behind the pooling that the caller leaves out
    route: str | None = None  # route of the Router; None without one
    files: tuple[Path, ...] = ()  # weight files of the modules behind the network


@dataclass(frozen=True)
class Checkpoint:
    """Pretrained model on disk."""

    model: str  # model as the user named it
    name: str  # short name, valid as a directory name
    # "transformers" for PyTorch weights, "onnx" for an encoder, "words" for a file of word vectors, or "static"
    # for a StaticEmbedding of sentence-transformers
    kind: Kind
    directory: Path  # directory of config, tokenizer and weights
    weights: tuple[Path, ...]  # files that contain the weights
    hub_id: str | None = None  # id on the hub, or None for local files
    revision: str | None = None  # commit on the hub, where known
    entry: Entry | None = None  # catalogue entry, if there is one
    adapter: Path | None = None  # directory of a LoRA adapter to merge into the weights, or None
    base_beside: Path | None = None  # directory of the adapter's base, where its relative path leads from beside it
    merged_into: str | None = None  # model that the adapter is merged into, or None
    weights_sha256: str = ""  # SHA-256 over the weight files, in the order of their names
    root: Path | None = None  # directory that names the model, which contains `directory`; None if they are the same
    authors: Authors | None = None  # how its authors make a vector of a text; None if nothing says so
    sentence_similarity: bool = False  # whether its files or the catalogue say that it was fine-tuned for it
    code: Mapping[str, str] = field(default_factory=dict)  # commits of other repositories whose code runs, by their ids
    notes: tuple[str, ...] = ()  # which of several models a name was taken for, where it may be another's

    @property
    def pooling(self) -> Pooling:
        """Return the default pooling: that of its authors, else the catalogue's, else "mean"."""
        if self.authors is not None:
            return self.authors.pooling
        return self.entry.pooling if self.entry is not None else "mean"

    @property
    def describes_vectors(self) -> bool:
        """Return whether its own files, and not only the catalogue, say how its authors make a vector."""
        return self.authors is not None and self.authors.stated_by != "catalogue"

    @property
    def tokenizer_directory(self) -> Path:
        """Return the directory of the tokenizer's files: that of the adapter, if it contains a tokenizer."""
        if self.adapter is not None and (self.adapter / "tokenizer_config.json").is_file():
            return self.adapter
        return self.directory


def with_catalogue(checkpoint: Checkpoint) -> Checkpoint:
    """Complete what a checkpoint's files say of its authors' vectors by its entry of the catalogue, if it has one."""
    entry, authors = checkpoint.entry, checkpoint.authors
    if entry is None:
        return checkpoint
    if authors is None and entry.as_published:
        authors = Authors((-1,), entry.pooling, normalize=entry.normalize, max_length=entry.max_length)
    if authors is not None:
        authors = replace(
            authors,
            prompts=dict(entry.prompts) | dict(authors.prompts),
            default_prompt_name=authors.default_prompt_name or entry.default_prompt,
            matryoshka_dimensions=entry.dimensions,
        )
    similar = checkpoint.sentence_similarity or entry.sentence_similarity
    return replace(checkpoint, authors=authors, sentence_similarity=similar)


_SPELLING = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")


_OF_THE_HUB = {
    "licenseref-gemma": "gemma",
    "licenseref-llama": "other",
    "licenseref-llama-2": "llama2",
    "pddl-1.0": "pddl",
}
"""Spellings of the hub that differ from those of SPDX, which the catalogue has, by more than their case."""


def recommended_layers(checkpoint: Checkpoint, count: int) -> tuple[int, ...]:
    """Return the catalogue's layers, else the first and the last of `count` blocks; of an embedding model, the last."""
    if checkpoint.entry is not None:
        return checkpoint.entry.recommended_layers
    return (count,) if checkpoint.sentence_similarity else tuple(sorted({1, count}))


def source_record(
    checkpoint: Checkpoint,
    model_type: str,
    num_hidden_layers: int,
    hidden_size: int,
    ignored_code: tuple[str, ...] = (),
    remote_code: tuple[str, ...] = (),
    network_sha256: tuple[str | UnsetType, str | UnsetType] = (UNSET, UNSET),
) -> Source:
    """Describe a checkpoint for the manifest; the second hash of its network is by the former rule."""
    network, former = network_sha256
    return Source(
        model=checkpoint.name,
        checkpoint=checkpoint.hub_id,
        revision=checkpoint.revision,
        weights_sha256=checkpoint.weights_sha256,
        network_sha256=network,
        former_network_sha256=former,
        merged_into=checkpoint.merged_into,
        model_type=model_type,
        num_hidden_layers=num_hidden_layers,
        hidden_size=hidden_size,
        sentence_similarity=checkpoint.sentence_similarity,
        license=stated_license(checkpoint),
        ignored_code=ignored_code or UNSET,
        remote_code=remote_code or UNSET,
        left_out=(checkpoint.authors.left_out if checkpoint.authors else ()) or UNSET,
    )


def read_card(folder: Path) -> Mapping[str, Any]:
    """Return what the first lines of a folder's README.md state; nothing where they cannot be read."""
    if (card := folder / CARD_FILE).is_file():
        from huggingface_hub import metadata_load

        with suppress(Exception):  # OSError, UnicodeError, and those of the YAML reader, which share no base class
            return metadata_load(card) or {}
    return {}


def stated_license(checkpoint: Checkpoint) -> str | None:
    """Return the licence that a checkpoint's own README.md states, else the catalogue's, in the hub's spelling."""
    folder, names = checkpoint.adapter or checkpoint.root or checkpoint.directory, []
    if checkpoint.kind != "words":  # what else is in the folder of a file may be of anything
        names.append(read_card(folder).get("license"))
    names.append(checkpoint.entry.licence if checkpoint.entry else None)
    spelled = (_OF_THE_HUB.get(name.lower(), name.lower()) for name in names if isinstance(name, str))
    return next(filter(_SPELLING.fullmatch, spelled), None)
