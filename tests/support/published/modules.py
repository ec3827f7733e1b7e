"""The modules of sentence-transformers, each with the files that it has in a repository."""

import json
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from support.published.networks import SIZE, Network
from support.published.tokenizer_files import TokenizerFiles
from support.sizes import MAX_LENGTH

if TYPE_CHECKING:
    import torch

Generation = Literal[2, 3, 6]
"""Version of sentence-transformers that saved a folder: with it go class paths and settings' names."""

Mode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]

_PATHS = {
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "Router": "sentence_transformers.base.modules.router.Router",
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "StaticEmbedding": "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding",
    "WeightedLayerPooling": (
        "sentence_transformers.sentence_transformer.modules.weighted_layer_pooling.WeightedLayerPooling"
    ),
    "LayerNorm": "sentence_transformers.sentence_transformer.modules.layer_norm.LayerNorm",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
}
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Place:
    """Where a module is written, and of what it comes.

    Attributes:
        directory: the module's; it need not exist.
        width: of what the module before it gives.
        generation: of the folder.
        seed: of random weights.
    """

    directory: Path
    width: int
    generation: Generation
    seed: int


class Module(Protocol):
    """Writes the files of a module."""

    def write(self, place: Place) -> int:
        """Write the module's files and return the width of what it gives."""
        ...


@dataclass(frozen=True)
class Transformer:
    """A network and its tokenizer.

    Attributes:
        network: writes config.json and the weights.
        tokenizer: writes the tokenizer's files.
        length: number of tokens to which texts are cut.
        stated: the length that tokenizer_config.json has; `length` where sentence-transformers 6 saved it.
        lowercase: whether texts are lower-cased before the tokenizer does so.
        path: of the files in the folder.
    """

    network: Network
    tokenizer: TokenizerFiles
    _: KW_ONLY
    length: int = MAX_LENGTH
    stated: int = MAX_LENGTH
    lowercase: bool = False
    path: str = ""

    def write(self, place: Place) -> int:
        """Write the files of transformers, and sentence_bert_config.json."""
        place.directory.mkdir(parents=True, exist_ok=True)
        vocabulary = self.tokenizer.save(place.directory, self.length if place.generation == 6 else self.stated)
        self.network.save(place.directory, vocabulary, place.seed)
        settings: dict[str, Any] = {"max_seq_length": self.length, "do_lower_case": self.lowercase}
        if place.generation == 6:  # both are in the tokenizer
            states = {"method": "forward", "method_output_name": "last_hidden_state"}
            settings = {
                "transformer_task": "feature-extraction",
                "modality_config": {"text": states},
                "module_output_name": "token_embeddings",
            }
        write_json(place.directory / "sentence_bert_config.json", settings)
        return SIZE


@dataclass(frozen=True)
class Pooling:
    """Pools the states of the tokens, in one way or in several side by side."""

    modes: tuple[Mode, ...] = ("mean",)
    include_prompt: bool = True

    def write(self, place: Place) -> int:
        """Write the pooling: one setting since version 5.4, a flag for each way before, four of them at first."""
        if place.generation == 6:
            modes = self.modes[0] if len(self.modes) == 1 else list(self.modes)
            settings = {
                "embedding_dimension": place.width,
                "pooling_mode": modes,
                "include_prompt": self.include_prompt,
            }
        else:
            flags = {name: mode in self.modes for name, mode in _FLAGS.items()}
            settings = {"word_embedding_dimension": place.width, **flags, "include_prompt": self.include_prompt}
            if place.generation == 2 and self.include_prompt and not set(self.modes) & {"weightedmean", "lasttoken"}:
                for name in ("pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken", "include_prompt"):
                    del settings[name]
        write_json(place.directory / "config.json", settings)
        return place.width * len(self.modes)


@dataclass(frozen=True)
class Normalize:
    """Divides by the norm. Its directory is empty, and so missing from a repository, until version 5."""

    def write(self, place: Place) -> int:
        """Write the settings, where there are any."""
        if place.generation == 6:
            settings = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
            write_json(place.directory / "config.json", settings)
        return place.width


@dataclass(frozen=True)
class Dense:
    """A linear layer and an activation.

    Attributes:
        width: of what it gives.
        activation: path of its class.
        bias: whether the layer has one.
        pickled: whether the weights are in pytorch_model.bin.
        state: what it takes, and puts back; `sentence_embedding` before version 5.4.
        residual: whether what comes is added to what goes, by a layer of its own where the widths differ.
    """

    width: int
    activation: str = "torch.nn.modules.activation.Tanh"
    _: KW_ONLY
    bias: bool = True
    pickled: bool = False
    state: Literal["sentence_embedding", "token_embeddings"] = "sentence_embedding"
    residual: bool = False

    def write(self, place: Place) -> int:
        """Write the settings and the weights."""
        settings: dict[str, Any] = {"in_features": place.width, "out_features": self.width, "bias": self.bias}
        settings["activation_function"] = self.activation
        if place.generation == 6:
            settings |= {f"module_{side}_name": self.state for side in ("input", "output")}
        write_json(place.directory / "config.json", settings | ({"use_residual": True} if self.residual else {}))
        sizes: dict[str, tuple[int, ...]] = {"linear.weight": (self.width, place.width)}
        if self.bias:
            sizes["linear.bias"] = (self.width,)
        if self.residual and self.width != place.width:
            sizes["residual.weight"] = (self.width, place.width)
        tensors = random_tensors(sizes, place.seed)
        save_tensors(tensors, place.directory, self.pickled)
        return self.width


@dataclass(frozen=True)
class LayerNorm:
    """Normalizes what was pooled, with weights of its own."""

    def write(self, place: Place) -> int:
        """Write the settings and the weights."""
        write_json(place.directory / "config.json", {"dimension": place.width})
        tensors = random_tensors({"norm.weight": (place.width,), "norm.bias": (place.width,)}, place.seed)
        save_tensors(tensors | {"norm.weight": 1 + tensors["norm.weight"]}, place.directory)
        return place.width


@dataclass(frozen=True)
class WeightedLayerPooling:
    """Takes the weighted mean of the states that several layers give for a token."""

    layers: int
    start: int

    def write(self, place: Place) -> int:
        """Write the settings and the weights, which are positive."""
        settings = {
            "word_embedding_dimension": place.width,
            "layer_start": self.start,
            "num_hidden_layers": self.layers,
        }
        write_json(place.directory / "config.json", settings)
        tensors = random_tensors({"layer_weights": (self.layers + 1 - self.start,)}, place.seed)
        save_tensors({"layer_weights": tensors["layer_weights"].exp()}, place.directory)
        return place.width


@dataclass(frozen=True)
class Other:
    """A module of which only settings and weights are known here.

    Attributes:
        type: path of its class.
        settings: its config.json, or None for no such file.
        file: name of that.
        sizes: of its tensors.
    """

    type: str
    settings: Mapping[str, Any] | None = None
    file: str = "config.json"
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def write(self, place: Place) -> int:
        """Write the settings and the weights."""
        if self.settings is not None:
            write_json(place.directory / self.file, self.settings)
        if self.sizes:
            save_tensors(random_tensors(self.sizes, place.seed), place.directory)
        return place.width


def class_name(module: Module) -> str:
    """Return the last part of the path of a module's class."""
    if isinstance(module, Other):
        return module.type.rpartition(".")[2]
    name: str = getattr(module, "name", type(module).__name__)
    return name


def class_path(module: Module, generation: Generation) -> str:
    """Return the path of a module's class: those of sentence-transformers moved in version 5.4."""
    if isinstance(module, Other):
        return module.type
    name = class_name(module)
    return _PATHS[name] if generation == 6 else f"sentence_transformers.models.{name}"


def random_tensors(sizes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, "torch.Tensor"]:
    """Return normal tensors, divided by the root of the number of columns or, with one axis, of ten."""
    import torch

    torch.manual_seed(seed)
    return {
        name: torch.randn(size) / math.sqrt(math.prod(size[1:]) if len(size) > 1 else 10)
        for name, size in sizes.items()
    }


def save_tensors(tensors: Mapping[str, "torch.Tensor"], directory: Path, pickled: bool = False) -> None:
    """Write model.safetensors, or pytorch_model.bin."""
    import torch
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    if pickled:
        torch.save(dict(tensors), directory / "pytorch_model.bin")
    else:
        save_file(dict(tensors), directory / "model.safetensors")


def write_json(file: Path, content: Any) -> None:
    """Write a file, and the directories above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False), "utf-8")
