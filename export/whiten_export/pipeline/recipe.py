"""What to export: the choices that a user makes, as data."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from whiten_runtime.bundle.manifest import Outputs, Pooling, Precision, Target
from whiten_runtime.checks import whole_number
from whiten_runtime.errors import UsageError
from whiten_runtime.ort.providers import on_device
from whiten_whitening.maps import Method, WhiteningSpec
from whiten_whitening.shrinkage import Shrinkage

BUILTIN_CORPUS = "builtin:python-docs"


@dataclass(frozen=True)
class Recipe:
    """What to export and how; `whiten-export --help` describes each choice.

    Attributes:
        model: catalogue name, directory written by `save_pretrained` or by optimum's ONNX export, LoRA adapter, file of
            word vectors, or hub id.
        layers: hidden states to average, 0 for the embedding layer, negative from the top; None for the default.
        pooling: "mean" over all real tokens, "cls" for the first, "last" for the last; "sif" weighs the words of a file
            of word vectors by their frequency and takes away what all sentences share; None for the catalogue's, else
            "mean".
        whitening: method of the whitening at the end; "auto" lets the export decide; None for none.
        dim: leading whitened dimensions to keep; None keeps all.
        beta: 1 whitens, 0 centres; see `WhiteningSpec`.
        shrinkage: of the covariance: "none", "ledoit-wolf", "oas", or a number from 0 to 1.
        dev: file of pairs with scores by which "auto" decides.
        corpus: files of sentences, or `BUILTIN_CORPUS`, which is the default.
        column: column or key of the text in those files.
        max_sentences: use this many sentences of the corpus at most, the first ones.
        normalize: divide by the L2 norm inside the graph.
        precision: "fp32"; "int8", one scale per token and per column of weights; "fp16", weights of half the size.
        target: "cuda" fuses operators for NVIDIA's GPUs, and computes the network in float16 with precision "fp16".
        max_length: tokens a text may have; None for the most that the model takes.
        revision: branch, tag or commit on the hub.
        trust_remote_code: run Python code that comes with the checkpoint.
        device: where PyTorch and onnxruntime compute: "cpu", "cuda" or "cuda:N".
        max_words: of a file of word vectors, keep the first and so the most frequent ones.
        frequencies: file of "word count" lines for "sif"; None takes the words' order for their rank.
        outputs: "both" gives the vector before whitening too.

    Raises:
        UsageError: choices that exclude each other, or a number out of range.
    """

    model: str
    layers: tuple[int, ...] | None = None
    pooling: Pooling | None = None
    whitening: Method | Literal["auto"] | None = "pca"
    dim: int | None = None
    beta: float = 1.0
    shrinkage: Shrinkage = "none"
    dev: str | None = None
    corpus: tuple[str, ...] | None = None
    column: str | None = None
    max_sentences: int | None = None
    normalize: bool = False
    precision: Precision = "fp32"
    target: Target = "cpu"
    max_length: int | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    device: str = "cpu"
    max_words: int | None = None
    frequencies: str | None = None
    outputs: Outputs = "whitened"

    def __post_init__(self) -> None:
        if self.layers is not None and not self.layers:
            raise UsageError("layers is empty; name at least one, or leave it out")
        for name, allowed in (
            ("pooling", (*get_args(Pooling), None)),
            ("precision", get_args(Precision)),
            ("whitening", (*get_args(Method), "auto", None)),
            ("outputs", get_args(Outputs)),
            ("target", get_args(Target)),
        ):
            if (value := getattr(self, name)) not in allowed:
                raise UsageError(f"{name} is {value!r}; wanted {' or '.join(map(str, allowed))}")
        for name in ("dim", "max_sentences", "max_length", "max_words"):
            if (value := getattr(self, name)) is not None:
                whole_number(name.replace("_", "-"), value, 1)
        on_device(self.device)
        if (self.target, self.precision) == ("cuda", "int8"):
            raise UsageError("precision int8 is for CPUs, target is cuda; name fp16 or fp32, or leave the target out")
        self._check_whitening()
        self._check_corpus()

    def _check_whitening(self) -> None:
        WhiteningSpec(self._method, self.dim if self.whitening else None, self.beta, self.shrinkage)
        if self.whitening is None:
            if self.dim is not None:
                raise UsageError(f"dim {self.dim} without whitening would cut coordinates at random; leave one out")
            for name, usual in (("beta", 1), ("shrinkage", "none"), ("outputs", "whitened")):
                if (value := getattr(self, name)) != usual:
                    raise UsageError(f"{name} is {value}, but there is no whitening; leave it out")
        if self.whitening == "auto" and self.beta != 1:
            raise UsageError(f"beta is {self.beta}, but whitening auto chooses it; leave it out, or name the method")
        if self.whitening != "auto" and self.dev is not None:
            raise UsageError(f"dev '{self.dev}' is for whitening auto to decide by; add --whitening auto")

    def _check_corpus(self) -> None:
        if isinstance(self.corpus, str) or self.corpus == ():
            raise UsageError(f"corpus is {self.corpus!r}; wanted a tuple of files, or None for '{BUILTIN_CORPUS}'")
        if not self.fits:
            for name in ("corpus", "column", "max_sentences"):
                if getattr(self, name) is not None:
                    raise UsageError(f"{name.replace('_', '-')} is for fitting a whitening, but there is none")
        if self.column is not None and set(self.sources) == {BUILTIN_CORPUS}:
            raise UsageError(f"column '{self.column}' was given without a corpus file; name the file it is a column of")

    @property
    def spec(self) -> WhiteningSpec | None:
        """The whitening that was asked for; None for none, and while it is not decided."""
        if self.whitening in (None, "auto"):
            return None
        return WhiteningSpec(self._method, self.dim, self.beta, self.shrinkage)

    @property
    def _method(self) -> Method:
        return "pca" if self.whitening is None or self.whitening == "auto" else self.whitening

    @property
    def fits(self) -> bool:
        """Whether sentences are needed: for a whitening, or for what all sentences share."""
        return self.whitening is not None or self.pooling == "sif"

    @property
    def sources(self) -> tuple[str, ...]:
        """The corpus, or the default one."""
        return self.corpus or (BUILTIN_CORPUS,)


@dataclass(frozen=True)
class VectorRecipe:
    """What to make of a file of vectors.

    Attributes:
        file: .npy, .parquet or .jsonl.
        name: of what made the vectors; None for the file's.
        column: column or key of the vectors.
        spec: which whitening.
        normalize: divide by the L2 norm inside the graph.
    """

    file: Path
    name: str | None = None
    column: str | None = None
    spec: WhiteningSpec = field(default_factory=WhiteningSpec)
    normalize: bool = False


def parse_layers(text: str) -> tuple[int, ...]:
    """Parse "1,12".

    Raises:
        UsageError: not whole numbers separated by commas.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"layers is '{text}'; wanted whole numbers separated by commas, such as 1,12") from None


def resolve_layers(
    layers: tuple[int, ...], num_hidden_layers: int, available: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Sorted indices into the hidden states, negatives counted from the top.

    Args:
        layers: as in `Recipe`.
        num_hidden_layers: blocks of the network; hidden state l is the output of block l.
        available: the hidden states that can be had; None for all.

    Raises:
        UsageError: a layer is out of range, given twice, or cannot be had.
    """
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


def bundle_name(name: str, recipe: Recipe, layers: tuple[int, ...]) -> str:
    """Default name of the bundle's directory, such as minilm-l1-l6-cls-128d."""
    parts = [name, *(f"l{layer}" for layer in layers)]
    if recipe.pooling not in ("mean", None):
        parts.append(str(recipe.pooling))
    parts.extend(whitening_name(recipe.whitening, recipe.dim, recipe.beta, recipe.shrinkage))
    if recipe.normalize:
        parts.append("norm")
    if recipe.precision != "fp32":
        parts.append(recipe.precision)
    if recipe.target != "cpu":
        parts.append(recipe.target)
    return "-".join(parts)


def whitening_name(method: str | None, dim: int | None, beta: float, shrinkage: Shrinkage) -> list[str]:
    """What is not usual about a whitening, as parts of a name."""
    parts = [] if method == "pca" else [method or "raw"]
    if beta != 1:
        parts.append(f"b{beta:g}")
    if shrinkage not in ("none", 0):
        parts.append(shrinkage if isinstance(shrinkage, str) else f"s{shrinkage:g}")
    if dim is not None:
        parts.append(f"{dim}d")
    return parts
