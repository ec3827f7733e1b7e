"""Define the choices about the source of an export: the model, and its hidden states."""

import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass

from whiten_runtime.bundle.records import Pooling, pooling_modes
from whiten_runtime.errors import UsageError, path_of, whole_number


@dataclass(frozen=True)
class SourceChoice:
    """Holds the choices about the model and its hidden states.

    Attributes:
        model: catalogue name, directory written by `save_pretrained` or by optimum's ONNX export, LoRA adapter, file of
            word vectors, or hub id.
        layers: hidden states to average, 0 for the embedding layer, negative from the top; None for the default.
        pooling: "mean" over all real tokens, "cls" for the first, "last" for the last, "max" of each coordinate,
            "weightedmean" for weights that grow with the position, "mean_sqrt_len" for the sum divided by the root of
            the number of tokens, "cls_avg" for half of the first and half of the mean, "pooler" for the network's dense
            and tanh over the first; several joined by "+" are concatenated. "sif" weights the words of a file of word
            vectors by their frequency and removes their common component. None for the model's own, else "mean".
        max_length: maximum number of tokens of a text; None for the default, from the checkpoint.
        revision: branch, tag or commit on the hub.
        trust_remote_code: run Python code that comes with the checkpoint.
        device: device of PyTorch and onnxruntime: "cpu", "cuda" or "cuda:N".
        max_words: number of words of a file of word vectors to keep, the first and so the most frequent ones.
        frequencies: file of "word count" lines for "sif"; None takes the words' order as their rank.
        route: route of a Router of sentence-transformers, such as "query"; None if it has no Router.
        matryoshka: numbers of leading coordinates that the model was trained to be cut to, with Matryoshka loss; None
            for those of the catalogue. Only for vectors without a whitening.

    Raises:
        UsageError: a choice cannot be used as given.
    """

    model: str
    layers: tuple[int, ...] | None = None
    pooling: Pooling | None = None
    max_length: int | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    device: str = "cpu"
    max_words: int | None = None
    frequencies: str | None = None
    route: str | None = None
    matryoshka: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        path_of("model", self.model)
        object.__setattr__(self, "layers", _whole_numbers("layers", self.layers, (0, 1)))
        object.__setattr__(self, "matryoshka", _whole_numbers("matryoshka", self.matryoshka, (256, 128)))
        for width in self.matryoshka or ():
            whole_number("matryoshka", width, 1)
        if self.pooling is not None:
            pooling_modes(self.pooling)
        for name in ("max_length", "max_words"):
            if (value := getattr(self, name)) is not None:
                whole_number(name.replace("_", "-"), value, 1)
        if re.fullmatch(r"cpu|cuda(:\d+)?", self.device) is None:
            raise UsageError(f"device is '{self.device}'; wanted cpu, cuda or cuda:N")


def _whole_numbers(name: str, given: object, example: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return a choice as whole numbers of Python."""
    if given is None:
        return None
    try:
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise TypeError
        found = tuple(given)
        if any(isinstance(one, bool) for one in found):
            raise TypeError
        numbers = tuple(map(operator.index, found))
    except TypeError:
        raise UsageError(f"{name} is {given!r}; wanted whole numbers in a tuple, such as {example}") from None
    if not numbers:
        raise UsageError(f"{name} is empty; name at least one, or leave it out")
    return numbers


def parse_numbers(name: str, text: str, example: str = "1,12") -> tuple[int, ...]:
    """Parse whole numbers such as the layers "1,12"."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{name} is '{text}'; wanted whole numbers separated by commas, such as {example}") from None


def resolve_layers(
    layers: tuple[int, ...], num_hidden_layers: int, available: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return sorted indices into the hidden states; negative ones count from the top."""
    resolved = []
    for layer in layers:
        index = layer + num_hidden_layers + 1 if layer < 0 else layer
        if not 0 <= index <= num_hidden_layers:
            raise UsageError(
                f"layer {layer} does not exist: the model has layers 0 (embeddings) to {num_hidden_layers}, "
                f"or -1 to {-num_hidden_layers - 1} from the top"
            )
        if index in resolved:
            raise UsageError(f"layer {index} is given twice; name each layer once")
        if available is not None and index not in available:
            raise UsageError(
                f"layer {index} is not among the outputs of this graph, only {', '.join(map(str, available))}; choose "
                "one of them, or export the graph with all hidden states"
            )
        resolved.append(index)
    return tuple(sorted(resolved))
