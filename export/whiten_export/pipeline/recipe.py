"""Define recipes: the choices about source, whitening and graph of an export."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from whiten_export.sources.choice import SourceChoice
from whiten_runtime.bundle.records import Outputs, Precision, Similarity, Target, VectorType
from whiten_runtime.errors import UsageError, instance_of, one_of, path_of, whole_number
from whiten_runtime.files.corpus import BUILTIN_CORPUS
from whiten_whitening.maps import Method, Shrinkage, WhiteningSpec


@dataclass(frozen=True)
class WhiteningChoice:
    """Holds the choices about the whitening and the sentences that it is fitted on.

    Attributes:
        method: method of the whitening; "auto" lets the export choose; None for no whitening. "default" is no whitening
            for an embedding model of which neither layers nor any of these choices are named; otherwise "pca" if β or
            the shrinkage are named, and "auto" if not.
        dim: number of leading whitened dimensions to keep; None for all.
        beta: exponent; 1 whitens, 0 centres; see `WhiteningSpec`.
        shrinkage: shrinkage of the covariance: "none", "ledoit-wolf", "oas", or a number from 0 to 1.
        dev: file of pairs with scores by which "auto" chooses.
        corpus: files of sentences, or `BUILTIN_CORPUS`, which is the default.
        column: column or key of the text in those files.
        max_sentences: maximum number of sentences of the corpus to use, spread over it.
        align_to: bundle of the same model and layers whose stored vectors are to stay usable: the map is turned onto
            its map.
        all_sentences: use all sentences of the corpus, even where more no longer move the map.

    Raises:
        UsageError: choices that exclude each other, or a number out of range.
    """

    method: Method | Literal["auto", "default"] | None = "default"
    dim: int | None = None
    beta: float = 1.0
    shrinkage: Shrinkage = "none"
    dev: str | None = None
    corpus: tuple[str, ...] | None = None
    column: str | None = None
    max_sentences: int | None = None
    align_to: str | Path | None = None
    all_sentences: bool = False

    def __post_init__(self) -> None:
        one_of("whitening", self.method, (*get_args(Method), "auto", "default", None))
        for name in ("dim", "max_sentences"):
            if (value := getattr(self, name)) is not None:
                whole_number(name.replace("_", "-"), value, 1)
        WhiteningSpec(self._method, self.dim if self.method else None, self.beta, self.shrinkage)
        if self.method is None:
            if self.dim is not None:
                raise UsageError(f"dim {self.dim} without whitening would cut coordinates at random; leave one out")
            for name, usual in (("beta", 1), ("shrinkage", "none"), ("align_to", None)):
                if (value := getattr(self, name)) != usual:
                    raise UsageError(f"{name.replace('_', '-')} is {value}, but there is no whitening; leave it out")
        if (self.method == "auto" or self.dev is not None) and self.beta != 1:
            how = "name the method" if self.dev is None else "leave dev out"
            raise UsageError(f"beta is {self.beta}, but whitening auto chooses it; leave it out, or {how}")
        if self.method not in ("auto", "default") and self.dev is not None:
            raise UsageError(f"dev '{self.dev}' is for whitening auto to decide by; leave the method out")
        if self.all_sentences and self.max_sentences is not None:
            raise UsageError(f"max-sentences {self.max_sentences} and all-sentences exclude each other; leave one out")
        if isinstance(self.corpus, str) or self.corpus == ():
            raise UsageError(f"corpus is {self.corpus!r}; wanted a tuple of files, or None for '{BUILTIN_CORPUS}'")
        if self.column is not None and set(self.sources) == {BUILTIN_CORPUS}:
            raise UsageError(f"column '{self.column}' was given without a corpus file; name the file it is a column of")

    @property
    def named(self) -> bool:
        """Return whether a whitening, or anything about one, was chosen."""
        return self != WhiteningChoice()

    @property
    def usual(self) -> Method | Literal["auto"]:
        """Return the method that "default" stands for where there is to be a whitening."""
        exact = self.beta != 1 or self.shrinkage not in ("none", 0)
        return "pca" if exact and self.dev is None else "auto"

    @property
    def spec(self) -> WhiteningSpec | None:
        """Return the whitening that was asked for; None for no whitening, and for "auto"."""
        if self.method in (None, "auto"):
            return None
        return WhiteningSpec(self._method, self.dim, self.beta, self.shrinkage)

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the corpus, or the default one."""
        return self.corpus or (BUILTIN_CORPUS,)

    @property
    def _method(self) -> Method:
        return "pca" if self.method in (None, "auto", "default") else self.method  # type: ignore[return-value]


def check_rounded(round_to: VectorType, normalize: bool) -> None:
    """Check the type of the finished vectors."""
    one_of("round-to", round_to, get_args(VectorType))
    if round_to == "int8" and normalize:
        raise UsageError("vectors of int8 have a scale of their own in place of the L2 norm; leave normalize out")


def check_similarity(round_to: VectorType, similarity: Similarity, model: str | Path) -> None:
    """Check that vectors of a type can be compared as those of a model are."""
    if round_to == "int8" and similarity != "cosine":
        raise UsageError(
            f"vectors of int8 keep cosines alone, but '{model}' is compared by {similarity}; leave round-to out"
        )


@dataclass(frozen=True)
class GraphChoice:
    """Holds the choices about precision, target and outputs of the graph.

    Attributes:
        precision: "fp32"; "int8", a quarter of the size; "fp16", weights of half the size.
        target: "cpu"; "cuda", which fuses operators for NVIDIA GPUs and computes the network in float16 for "fp16".
        normalize: divide by the L2 norm inside the graph; None to do so where an embedding model that is exported as
            published does.
        outputs: "whitened"; "both", which outputs the vector before whitening too.
        round_to: what the graph rounds the finished vectors to: "float32", as they are; "int8", whole numbers
            from -127 to 127 with one scale for each vector, which keep cosines. The graph gives float32 for both.

    Raises:
        UsageError: choices that exclude each other.
    """

    precision: Precision = "fp32"
    target: Target = "cpu"
    normalize: bool | None = None
    outputs: Outputs = "whitened"
    round_to: VectorType = "float32"

    def __post_init__(self) -> None:
        one_of("precision", self.precision, get_args(Precision))
        one_of("outputs", self.outputs, get_args(Outputs))
        one_of("target", self.target, get_args(Target))
        check_rounded(self.round_to, bool(self.normalize))
        if (self.target, self.precision) == ("cuda", "int8"):
            raise UsageError("precision int8 is for CPUs, target is cuda; name fp16 or fp32, or leave the target out")


@dataclass(frozen=True)
class Recipe:
    """Describes a model to export and all choices about it; see `whiten-export --help`.

    Attributes:
        source: model, and its hidden states to export.
        whitening: whitening, and the corpus that it is fitted on.
        graph: precision, target and outputs.

    Raises:
        UsageError: choices of different parts that exclude each other.
    """

    source: SourceChoice
    whitening: WhiteningChoice = WhiteningChoice()
    graph: GraphChoice = GraphChoice()

    @classmethod
    def of(cls, model: str, **choices: Any) -> "Recipe":
        """Return a recipe from choices by name, like the options of `whiten-export`.

        Args:
            model: model, as in `SourceChoice`.
            choices: attributes of the three parts; `whitening` is `WhiteningChoice.method`.

        Raises:
            TypeError: there is no such choice.
            UsageError: a choice cannot be used as given, or two exclude each other.
        """
        if "method" in choices:
            raise TypeError("a recipe has no choice 'method'; its name is 'whitening'")
        if "whitening" in choices:
            choices["method"] = choices.pop("whitening")
        known = {part: {field.name for field in fields(part)} for part in _PARTS}
        if unknown := choices.keys() - set().union(*known.values()):
            raise TypeError(f"a recipe has no choice '{min(unknown)}'")
        source, whitening, graph = ({name: choices[name] for name in choices if name in known[part]} for part in _PARTS)
        return cls(SourceChoice(model, **source), WhiteningChoice(**whitening), GraphChoice(**graph))

    def __post_init__(self) -> None:
        for part, kind in zip((self.source, self.whitening, self.graph), _PARTS, strict=True):
            if not isinstance(part, kind):
                raise UsageError(
                    f"a part of the recipe is {part!r}; wanted a {kind.__name__}, or choices by name in Recipe.of"
                )
        if self.whitening.method is None and self.graph.outputs != "whitened":
            raise UsageError(f"outputs is {self.graph.outputs}, but there is no whitening; leave it out")
        if not self.fits:
            for name in ("corpus", "column", "max_sentences"):
                if getattr(self.whitening, name) is not None:
                    raise UsageError(f"{name.replace('_', '-')} is for fitting a whitening, but there is none")
            if self.whitening.all_sentences:
                raise UsageError("all-sentences is for fitting a whitening, but there is none")

    @property
    def fits(self) -> bool:
        """Return whether sentences are needed: for a whitening, or for the common component of sif."""
        return self.whitening.method is not None or self.source.pooling == "sif"


_PARTS: tuple[type[SourceChoice], type[WhiteningChoice], type[GraphChoice]] = (
    SourceChoice,
    WhiteningChoice,
    GraphChoice,
)


@dataclass(frozen=True)
class VectorRecipe:
    """Describes a file of vectors to whiten, and the choices about it.

    Attributes:
        file: a .npy, .parquet or .jsonl file.
        name: name of the model that computed the vectors; None for the file's name.
        column: column or key of the vectors.
        spec: whitening to fit.
        normalize: divide by the L2 norm inside the graph.
        round_to: what the graph rounds the whitened vectors to, as in `GraphChoice`.

    Raises:
        UsageError: choices that exclude each other.
    """

    file: Path
    name: str | None = None
    column: str | None = None
    spec: WhiteningSpec = field(default_factory=WhiteningSpec)
    normalize: bool = False
    round_to: VectorType = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", path_of("file", self.file))
        instance_of("spec", self.spec, WhiteningSpec, "WhiteningSpec(method='pca')")
        check_rounded(self.round_to, self.normalize)


def bundle_name(
    name: str, recipe: Recipe, layers: tuple[int, ...], normalize: bool = False, as_published: bool = False
) -> str:
    """Return the default name of the bundle's directory, such as minilm-l1-l6-cls-128d."""
    pooling, whitening, graph = recipe.source.pooling, recipe.whitening, recipe.graph
    parts = [name]
    if recipe.source.route is not None:
        parts.append(recipe.source.route)
    if not as_published:
        parts.extend(f"l{layer}" for layer in layers)
        if pooling not in ("mean", None):
            parts.append(str(pooling).replace("+", "-"))
        parts.extend(whitening_name(whitening.method, whitening.dim, whitening.beta, whitening.shrinkage))
        if normalize:
            parts.append("norm")
    if graph.precision != "fp32":
        parts.append(graph.precision)
    if graph.target != "cpu":
        parts.append(graph.target)
    if graph.round_to != "float32":
        parts.append(f"{graph.round_to}vectors")
    return "-".join(parts)


def whitening_name(
    method: str | None, dim: int | None, beta: float, shrinkage: Shrinkage, usual: str = "auto"
) -> list[str]:
    """Return the settings of a whitening that differ from the defaults, as parts of a name."""
    parts = [] if method in (usual, "default") else [method or "raw"]
    if beta != 1:
        parts.append(f"b{beta:g}")
    if shrinkage not in ("none", 0):
        parts.append(shrinkage if isinstance(shrinkage, str) else f"s{shrinkage:g}")
    if dim is not None:
        parts.append(f"{dim}d")
    return parts
