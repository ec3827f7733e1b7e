"""Define recipes: all choices about an export, checked as far as that is possible without the model."""

import operator
import re
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal, get_args

from whiten_runtime.bundle.manifest import Pooling, Precision, Target, pooling_modes
from whiten_runtime.errors import UsageError, one_of, path_of, whole_number
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_whitening.maps import Method, Shrinkage, WhiteningSpec

Whitening = Method | Literal["centre", "partial"]
"""A whitening that can be asked for by its name."""

WHITENINGS = (*get_args(Method), "centre", "partial")

SENTENCES_PER_DIMENSION = 12
"""Largest number of sentences of a corpus that a fit uses for each dimension of the vectors, unless a number is named.

Layers 0 and 1 of all-MiniLM-L6-v2, fitted on the built-in corpus, score 66.12 on five STS tasks with 4,608 sentences,
and 66.13 with all 15,600; fitted on 29,000 captions, 63.36 with 4,608 and 63.40 with all.
"""


@dataclass(frozen=True)
class Recipe:
    """Choices about an export, which are the options of `whiten-export`.

    Attributes:
        model: catalogue name, directory written by `save_pretrained` or by optimum's ONNX export, LoRA adapter, file of
            word vectors, or hub id, of another revision than the main branch as "ORG/NAME@REVISION".
        layers: hidden states to average, 0 for the embedding layer, negative from the top; None for the default.
        pooling: "mean" over all real tokens, "cls" for the first, "last" for the last, "max" of each coordinate,
            "weightedmean" for weights that grow with the position, "mean_sqrt_len" for the sum divided by the root of
            the number of tokens, "cls_avg" for half of the first and half of the mean, "pooler" for the network's dense
            and tanh over the first; several joined by "+" are concatenated. "sif" weights the words of a file of word
            vectors by their frequency, which follows from their order, and removes their common component. None for the
            model's own, else "mean".
        max_length: maximum number of tokens of a text; None for the default, from the checkpoint.
        trust_remote_code: run Python code that comes with the checkpoint.
        device: device of PyTorch and onnxruntime: "cpu", "cuda" or "cuda:N".
        route: route of a Router of sentence-transformers, such as "query"; None if it has no Router.
        leave_out: classes of modules behind the pooling to leave out, such as "FlexibleQuantizer".
        matryoshka: numbers of leading coordinates that the model was trained to be cut to, with Matryoshka loss; None
            for those of the catalogue. Only for vectors without a whitening.
        whitening: method of the whitening, which whitens in full; "centre" only centres, "partial" whitens with half
            the exponent, both along the axes of pca; "auto" lets the export choose; None for no whitening. "default" is
            no whitening for an embedding model of which neither layers nor anything about a whitening is named;
            otherwise "pca" if the shrinkage is named, and "auto" if not.
        dim: number of leading whitened dimensions to keep; None for all.
        shrinkage: shrinkage of the covariance: "none", "ledoit-wolf", "oas", or a number from 0 to 1.
        dev: what "auto" chooses by: a file of pairs with scores, or a folder of collections to search.
        corpus: files of sentences to fit the whitening on, or "builtin:english-1", which is the default.
        column: column or key of the text in those files.
        prompt_name: name of a prompt of the model that each of those sentences gets, such as "query"; None for the
            model's default prompt, if it has one.
        max_sentences: maximum number of sentences of the corpus to use, spread over it; "all" for all of them; None for
            twelve for each dimension of the vectors before whitening.
        align_to: bundle of the same model and layers whose stored vectors are to stay usable: the map is turned onto
            its map.
        precision: "fp32"; "int8", a quarter of the size; "fp16", weights of half the size.
        target: "cpu"; "cuda", which fuses operators for NVIDIA GPUs and computes the network in float16 for "fp16".
        normalize: divide by the L2 norm inside the graph; None to do so where an embedding model that is exported as
            published does.

    Raises:
        UsageError: a choice cannot be used as given, or two exclude each other.
    """

    model: str
    _: KW_ONLY
    layers: tuple[int, ...] | None = None
    pooling: Pooling | None = None
    max_length: int | None = None
    trust_remote_code: bool = False
    device: str = "cpu"
    route: str | None = None
    leave_out: tuple[str, ...] = ()
    matryoshka: tuple[int, ...] | None = None
    whitening: Whitening | Literal["auto", "default"] | None = "default"
    dim: int | None = None
    shrinkage: Shrinkage = "none"
    dev: str | None = None
    corpus: tuple[str, ...] | None = None
    column: str | None = None
    prompt_name: str | None = None
    max_sentences: int | Literal["all"] | None = None
    align_to: str | Path | None = None
    precision: Precision = "fp32"
    target: Target = "cpu"
    normalize: bool | None = None

    def __post_init__(self) -> None:
        path_of("model", self.model)
        object.__setattr__(self, "layers", _whole_numbers("layers", self.layers, (0, 1)))
        object.__setattr__(self, "matryoshka", _whole_numbers("matryoshka", self.matryoshka, (256, 128)))
        for width in self.matryoshka or ():
            whole_number("matryoshka", width, 1)
        if self.pooling is not None:
            pooling_modes(self.pooling)
        if re.fullmatch(r"cpu|cuda(:[0-9]{1,4})?", self.device) is None:
            raise UsageError(f"device is '{self.device}'; wanted cpu, cuda or cuda:N")
        for name in ("max_length", "dim"):
            if (value := getattr(self, name)) is not None:
                whole_number(_option(name), value, 1)
        if self.max_sentences is not None and self.max_sentences != "all":
            whole_number("max-sentences", self.max_sentences, 1, why=", or all")
        if not isinstance(self.leave_out, tuple) or not all(isinstance(name, str) for name in self.leave_out):
            raise UsageError(f"leave-out is {self.leave_out!r}; wanted a tuple of classes, such as ('Dense',)")
        _check_whitening(self)
        _check_graph(self)
        _check_corpus(self)

    @property
    def whitening_named(self) -> bool:
        """Return whether a whitening, or anything about one, was chosen."""
        return any(getattr(self, name) != usual for name, usual in _USUAL.items())

    @property
    def usual_whitening(self) -> Whitening | Literal["auto"]:
        """Return the whitening that "default" stands for where there is to be one."""
        return "pca" if self.shrinkage not in ("none", 0) and self.dev is None else "auto"

    @property
    def spec(self) -> WhiteningSpec | None:
        """Return the whitening that was asked for; None for no whitening, and for "auto"."""
        if self.whitening is None or self.whitening == "auto":
            return None
        return named_spec(_named(self.whitening), self.dim, self.shrinkage)

    @property
    def sources(self) -> tuple[str, ...]:
        return self.corpus or (BUILTIN_CORPUS,)

    def corpus_for(self, width: int | None) -> Corpus:
        """Return the sentences to fit a whitening on, of vectors that have `width` coordinates before it.

        Without a width, they are those to calibrate int8 on, and to compare tokenizers on, where nothing is fitted.
        """
        limit = self.max_sentences
        if limit is None and width is not None:
            limit = SENTENCES_PER_DIMENSION * width
        return Corpus(self.sources, self.column, None if limit == "all" else limit)

    @property
    def for_fitting(self) -> tuple[str, ...]:
        """Return the choices of sentences that mean nothing where no whitening is fitted; int8 needs sentences too."""
        return ("prompt_name",) if self.precision == "int8" else ("corpus", "column", "prompt_name", "max_sentences")

    @property
    def fits(self) -> bool:
        """Return whether sentences are needed: for a whitening, or for the common component of sif."""
        return self.whitening is not None or self.pooling == "sif"


_USUAL = {
    name: Recipe.__dataclass_fields__[name].default
    for name in (
        *("whitening", "dim", "shrinkage", "dev"),
        *("corpus", "column", "prompt_name", "max_sentences", "align_to"),
    )
}
"""Defaults of the choices about the whitening."""


def _option(name: str) -> str:
    return name.replace("_", "-")


def named_spec(name: Whitening, dim: int | None, shrinkage: Shrinkage) -> WhiteningSpec:
    one_of("whitening", name, WHITENINGS)
    if name == "centre":
        return WhiteningSpec("pca", dim, 0.0, shrinkage)
    if name == "partial":
        return WhiteningSpec("pca", dim, 0.5, shrinkage)
    return WhiteningSpec(name, dim, 1.0, shrinkage)


def _named(whitening: Whitening | Literal["auto", "default"] | None) -> Whitening:
    return "pca" if whitening is None or whitening in ("auto", "default") else whitening  # type: ignore[return-value]


def _check_whitening(recipe: Recipe) -> None:
    method, dim, dev = recipe.whitening, recipe.dim, recipe.dev
    one_of("whitening", method, (*WHITENINGS, "auto", "default", None))
    named_spec(_named(method), dim if method else None, recipe.shrinkage)
    if method is None:
        if dim is not None:
            raise UsageError(f"dim {dim} without whitening would cut coordinates at random; leave one out")
        for name in ("shrinkage", "align_to"):
            if (value := getattr(recipe, name)) != _USUAL[name]:
                raise UsageError(f"{_option(name)} is {value}, but there is no whitening; leave it out")
    if method not in ("auto", "default") and dev is not None:
        raise UsageError(f"dev '{dev}' is for whitening auto to decide by; leave the method out")


def _check_corpus(recipe: Recipe) -> None:
    if isinstance(recipe.corpus, str) or recipe.corpus == ():
        raise UsageError(f"corpus is {recipe.corpus!r}; wanted a tuple of files, or None for '{BUILTIN_CORPUS}'")
    if recipe.column is not None and set(recipe.sources) == {BUILTIN_CORPUS}:
        raise UsageError(f"column '{recipe.column}' was given without a corpus file; name the file it is a column of")
    if not recipe.fits:
        for name in recipe.for_fitting:
            if getattr(recipe, name) != _USUAL[name]:
                also = "" if name == "prompt_name" else ", or calibrating precision int8"
                raise UsageError(f"{_option(name)} is for fitting a whitening{also}, but there is none")


def _check_graph(recipe: Recipe) -> None:
    one_of("precision", recipe.precision, get_args(Precision))
    one_of("target", recipe.target, get_args(Target))
    if (recipe.target, recipe.precision) == ("cuda", "int8"):
        raise UsageError("precision int8 is for CPUs, target is cuda; name fp16 or fp32, or leave the target out")


def _whole_numbers(name: str, choice: object, example: tuple[int, ...]) -> tuple[int, ...] | None:
    if choice is None:
        return None
    try:
        if isinstance(choice, str | bytes) or not isinstance(choice, Iterable):
            raise TypeError
        values = tuple(choice)
        if any(isinstance(value, bool) for value in values):
            raise TypeError
        numbers = tuple(map(operator.index, values))
    except TypeError:
        raise UsageError(f"{name} is {choice!r}; wanted whole numbers in a tuple, such as {example}") from None
    if not numbers:
        raise UsageError(f"{name} is empty; name at least one, or leave it out")
    return numbers


def bundle_name(
    name: str, recipe: Recipe, layers: tuple[int, ...], normalize: bool = False, as_published: bool = False
) -> str:
    """Return the default name of the bundle's directory, such as minilm-l1-l6-cls-128d."""
    parts = [name]
    if recipe.route is not None:
        parts.append(recipe.route)
    if not as_published:
        parts.extend(f"l{layer}" for layer in layers)
        if recipe.pooling not in ("mean", None):
            parts.append(str(recipe.pooling).replace("+", "-"))
        parts.extend(whitening_name(recipe.whitening, recipe.dim, recipe.shrinkage))
        if normalize:
            parts.append("norm")
    if recipe.precision != "fp32":
        parts.append(recipe.precision)
    if recipe.target != "cpu":
        parts.append(recipe.target)
    return "-".join(parts)


def whitening_name(whitening: str | None, dim: int | None, shrinkage: Shrinkage, usual: str = "auto") -> list[str]:
    """Return the settings of a whitening that differ from the defaults, as parts of a name."""
    parts = [] if whitening in (usual, "default") else [whitening or "raw"]
    if shrinkage not in ("none", 0):
        parts.append(shrinkage if isinstance(shrinkage, str) else f"s{shrinkage:g}")
    if dim is not None:
        parts.append(f"{dim}d")
    return parts
