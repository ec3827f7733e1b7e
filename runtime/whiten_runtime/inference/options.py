"""Say what a call asks for: `Prompts`, which come before its texts, and `EncodeOptions`, checked against a bundle."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, SupportsIndex, TypedDict

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.bundle.manifest import Manifest, Similarity, VectorPrecision, WhiteningRecord
from whiten_runtime.errors import UsageError, check_flags, whole_number, written
from whiten_runtime.inference.vectors import OutputMoments, Quantizer, check_computed, unit

TEXT = "{text}"
"""Place of the text in a prompt that goes around it, such as AnglE's 'Summarize sentence "{text}" in one word:"'."""

Task = Literal["query", "document"]

TASK_PROMPTS: dict[Task, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""Names of prompts for queries and documents, in order of preference, as sentence-transformers describes them.

Its version 6.2 has an empty prompt for documents where a folder has none, so that the second and third never apply.
"""


@dataclass(frozen=True)
class Prompts:
    texts: Mapping[str, str] = field(default_factory=dict)  # prompts by name
    default: str | None = None  # name of the prompt that texts get if none is asked for; None for no prompt
    pooled: bool = True  # whether the tokens of a prompt take part in the pooling

    @classmethod
    def of(cls, manifest: Manifest) -> "Prompts":
        return cls(manifest.prompts, manifest.default_prompt_name, manifest.include_prompt)

    def of_fit(self, whitening: WhiteningRecord | None) -> str:
        """Return the prompt that the sentences got on which a whitening was fitted; the default one for none."""
        name = msgspec.UNSET if whitening is None else whitening.prompt_name
        return self.resolve(None if name is msgspec.UNSET else name)

    def resolve(self, prompt_name: str | None = None, prompt: str | None = None) -> str:
        """Return the prompt to apply; an empty string for none."""
        if prompt is not None and prompt_name is not None:
            raise UsageError(f"prompt and prompt_name {written(prompt_name)} were both given; leave one out")
        if prompt is None:
            name = self.default if prompt_name is None else prompt_name
            if name is not None and not (isinstance(name, str) and name in self.texts):
                known = ", ".join(f"'{own}'" for own in self.texts) or "none"
                raise UsageError(
                    f"prompt_name is {written(name)}, but the bundle's prompts are: {known}; or pass prompt=TEXT"
                )
            prompt = "" if name is None else self.texts[name]
        if not isinstance(prompt, str):
            raise UsageError(f"prompt is {written(prompt)}; wanted a str")
        if not self.pooled and TEXT in prompt:
            raise UsageError(f"prompt goes around the text ({TEXT}), but this bundle leaves prompts out of its pooling")
        return prompt

    def for_task(self, task: Task) -> str:
        """Return the first prompt of a task's names that the bundle has.

        As in sentence-transformers, the default prompt does not take its place; but a default template does, because
        every text of such a model stands in a template.
        """
        named = next((name for name in TASK_PROMPTS[task] if name in self.texts), None)
        if named is not None:
            return self.resolve(named)
        default = self.resolve()
        return default if TEXT in default else ""


def check_route(manifest: Manifest, task: str | None) -> None:
    """Check that a bundle of a model with a route for queries and one for documents holds that of a task."""
    route = manifest.route
    if task in TASK_PROMPTS and route in TASK_PROMPTS and route != task:
        raise UsageError(f"this bundle holds the route {route}; export one with --route {task} for this")


def searched_by_cosine(similarity: Similarity, normalize: bool) -> bool:
    """Return whether a search compares vectors of a similarity by cosine, or else by dot product."""
    if normalize or similarity == "cosine":
        return True
    if similarity == "dot":
        return False
    raise UsageError(f"compares vectors by {similarity}; search is scored by cosine or dot product")


def with_prompt(prompt: str, texts: Sequence[str]) -> Sequence[str]:
    """Return texts with a prompt before each, or around each if it contains `{text}`."""
    if not prompt:
        return texts
    if TEXT in prompt:
        return [prompt.replace(TEXT, text) for text in texts]
    return [prompt + text for text in texts]


class QueuedArguments(TypedDict, total=False):
    """Keyword arguments of `Batcher.submit` and `AsyncEncoder.encode`, described at `Encoder.encode`.

    For functions that pass them on: `def embed(texts, **options: Unpack[QueuedArguments])`.
    """

    prompt_name: str | None
    prompt: str | None
    truncate: bool
    max_characters: int | None
    normalize_embeddings: bool
    truncate_dim: int | None
    precision: VectorPrecision | None
    ranges: ArrayLike | None


class EncodeArguments(QueuedArguments, total=False):
    """Keyword arguments of `Encoder.encode` and `encode_iter`, described at `Encoder.encode`."""

    batch_size: int | None


@dataclass(frozen=True)
class EncodeOptions:
    """Says how the texts of a call are tokenised, run and finished. Its defaults give a graph's vectors as is."""

    prompt: str = ""  # put before each text, or around it; see `with_prompt`
    include_prompt: bool = True  # whether the tokens of the prompt take part in the pooling
    truncate: bool = True  # truncate texts that are too long instead of raising
    # characters of a text beyond which it is cut, or refused; None for the embedder's
    max_characters: int | None = None
    batch_size: int | None = None  # maximum number of texts per batch, or None
    outputs: tuple[str, ...] = (OUTPUT,)  # outputs of the graph, concatenated
    finite: bool = False  # refuse vectors that are not finite, with the text's index
    width: int | None = None  # number of leading coordinates to keep; None for all
    normalize: bool = False  # divide each vector by its L2 norm
    quantize: Callable[[NDArray[np.float32]], NDArray[Any]] | None = None  # applied last; None for float32

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        moments: OutputMoments | None = None,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        truncate: bool = True,
        max_characters: int | None = None,
        precision: VectorPrecision | None = "float32",
        ranges: ArrayLike | None = None,
    ) -> "EncodeOptions":
        """Check the options of a call, which are named as in `Encoder.encode`, against a bundle.

        `moments` are those of its vectors over its corpus, if it stores them.
        """
        check_flags(normalize_embeddings=normalize_embeddings, truncate=truncate)
        text = Prompts.of(manifest).resolve(prompt_name, prompt)
        width, normalize = manifest.dimension, bool(normalize_embeddings)
        if truncate_dim is not None:
            width = leading_width(manifest, truncate_dim)
            normalize = normalize or manifest.normalize
        stored = partial(stored_ranges, manifest, moments, width, normalize)
        quantize = Quantizer.of("float32" if precision is None else precision, ranges, width, stored)
        return cls(
            prompt=text,
            include_prompt=manifest.include_prompt,
            truncate=truncate,
            max_characters=None if max_characters is None else whole_number("max_characters", max_characters, 1),
            batch_size=None if batch_size is None else whole_number("batch_size", batch_size, 1),
            finite=True,
            width=width,
            normalize=normalize,
            quantize=quantize,
        )

    def finish(self, vectors: NDArray[np.float32], name: str = "texts") -> NDArray[Any]:
        """Make the vectors of a call of those that the graph gives, float32 [n, k]: cut, check, normalise, quantise."""
        whole = self.width is None or self.width == vectors.shape[1]
        rows = vectors if whole else vectors[:, : self.width].copy()
        if self.finite:
            check_computed(rows, name)
        if self.normalize:
            rows = unit(rows)
        return rows if self.quantize is None else self.quantize(rows)


def stored_ranges(
    manifest: Manifest, moments: OutputMoments | None, width: int, normalize: bool
) -> NDArray[np.float32]:
    """Return the ranges of the leading coordinates of a bundle's vectors, float32 [2, width], from its moments."""
    if moments is None:
        raise UsageError(
            "this bundle stores no moments of its vectors, from which the ranges of int8 and uint8 follow; take "
            "float32, export with a whitening (--whitening centre centres and rotates, which keeps Euclidean distances "
            f"but not cosines), or in Python pass ranges, float32 [2, {width}]"
        )
    return moments.ranges(width, normalize or manifest.normalize)


def leading_width(manifest: Manifest, value: SupportsIndex, name: str = "truncate_dim") -> int:
    """Return how many leading coordinates are kept of a bundle's vectors.

    Raises:
        UsageError: the vectors have fewer coordinates, or their first ones mean no more than the others.
    """
    width = whole_number(name, value, 1, manifest.dimension, ", the bundle's dimension")
    if width < manifest.dimension and not manifest.nested and width not in manifest.matryoshka_dimensions:
        if manifest.matryoshka_dimensions:
            allowed = ", ".join(map(str, manifest.matryoshka_dimensions))
            raise UsageError(f"{name} is {width}; the model was trained for vectors cut to {allowed}")
        if (alignment := manifest.whitening.alignment if manifest.whitening else None) is not None:
            raise UsageError(
                f"{name} is {width}, but the whitening is turned onto that of space {alignment.space}, which "
                "mixes the coordinates; use a bundle that was fitted with pca or pca-cor and without "
                "--align-to, or leave it out"
            )
        method = manifest.whitening.method if manifest.whitening else "none"
        why = "there is no whitening" if method == "none" else f"the whitening is {method}"
        declared = f"--matryoshka {width} if the model was trained for it, or with " if not manifest.whitening else ""
        raise UsageError(
            f"{name} is {width}, but {why}, whose first coordinates mean no more than the others; export with "
            f"{declared}--whitening pca or pca-cor, or leave {name} out"
        )
    return width
