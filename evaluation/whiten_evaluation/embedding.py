"""Embed the texts of an evaluation: every distinct text goes through the graph once."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.graph import OUTPUT, UNWHITENED_OUTPUT
from whiten_runtime.bundle.manifest import NESTED_METHODS, Manifest, read_manifest
from whiten_runtime.errors import BundleError, DataError, UsageError
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.inference.options import Prompts, leading_width
from whiten_runtime.inference.vectors import unit
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import (
    WARNED_RATIO,
    Method,
    Shrinkage,
    WhiteningMap,
    WhiteningSpec,
    check_for_sif,
    check_sample_count,
    fit_map,
    fit_sif,
)
from whiten_whitening.moments import Float64Array, Moments

SourceName = Literal["bundle", "task", "corpus", "none"]
"""Source of a whitening: the bundle's own, one fitted on the sentences of the task (WhiteningBERT's), one fitted on the
documents that are searched, or none."""


@dataclass(frozen=True)
class WhiteningSource:
    """The whitening of an evaluation."""

    source: SourceName = "bundle"
    spec: WhiteningSpec = field(default_factory=WhiteningSpec)  # of the whitening that is fitted on "task"
    dimension: int | None = None  # leading coordinates to keep of "bundle"; `spec` holds that of "task"

    @classmethod
    def parse(
        cls,
        source: SourceName,
        dimension: int | None,
        method: Method = "pca",
        shrinkage: Shrinkage = "none",
    ) -> "WhiteningSource":
        """Make a source from options of a command line; refuse options that exclude each other."""
        if source in ("task", "corpus"):
            return cls(source, WhiteningSpec(method, dimension, shrinkage=shrinkage))
        for name, value, default in (("whitening", method, "pca"), ("shrinkage", shrinkage, "none")):
            if value != default:
                raise UsageError(f"{name} {value} is for --fit-on task or corpus; leave it out")
        if source == "none" and dimension is not None:
            raise UsageError(f"dim {dimension} needs a whitening, but --fit-on is none; leave one out")
        return cls(source, dimension=dimension)

    @property
    def fitted(self) -> bool:
        """Return whether a whitening is fitted on texts of the evaluation."""
        return self.source in ("task", "corpus")

    def __str__(self) -> str:
        if self.fitted:
            return f"{self.source}{''.join(f', {part}' for part in _unusual(self.spec))}"
        return f"{self.source}{f', {self.dimension} dimensions' if self.dimension else ''}"


@dataclass(frozen=True)
class TextVectors:
    """Distinct texts and their vectors."""

    rows: dict[str, int]  # row of each text in `vectors`
    vectors: NDArray[np.float32]  # [m, d]
    common: bool = False  # whether their common component is removed before a whitening (SIF)

    def of(self, texts: Iterable[str]) -> Float64Array:
        """Return the vectors of texts, float64 [n, d]."""
        return np.asarray(self.vectors[[self.rows[text] for text in texts]], np.float64)

    def fit(self, texts: Iterable[str], spec: WhiteningSpec, what: str) -> WhiteningMap:
        """Fit a whitening on texts, named `what`; a repeated text counts as often as it occurs."""
        moments = Moments.of(self.of(texts))
        check_fit(moments.n, len(moments.mean), spec, what)
        try:
            return fit_sif(moments, spec) if self.common else fit_map(moments, spec)
        except UsageError as error:
            raise UsageError(f"{what}: {error}") from None


def _unusual(spec: WhiteningSpec) -> Iterator[str]:
    """Yield in words what differs from a full pca without shrinkage."""
    if spec.method != "pca":
        yield spec.method
    if spec.beta != 1:
        yield f"beta {spec.beta:g}"
    if spec.shrinkage != "none":
        yield f"shrinkage {spec.shrinkage}"
    if spec.dimension:
        yield f"{spec.dimension} dimensions"


def check_fit(n: int, width: int, spec: WhiteningSpec, what: str) -> None:
    """Check that n sentences are enough to fit a whitening on, and that it keeps no more dimensions than there are."""
    if spec.dimension is not None and spec.dimension > width:
        raise UsageError(f"dim is {spec.dimension}, but the vectors have {width} dimensions; wanted 1 to {width}")
    try:
        check_sample_count(n, width, spec)
    except UsageError:
        nested = spec.method in NESTED_METHODS and n >= WARNED_RATIO
        advice = f", keep --dim {n // WARNED_RATIO} or fewer" if nested else ""
        raise UsageError(
            f"{what}: {n:,} sentences cannot whiten {width} dimensions, all pairs would come out equally similar; "
            f"shrink (--shrinkage oas){advice}, or choose other texts"
        ) from None


def check_bundles(
    bundles: Iterable[Path], whitening: WhiteningSource, groups: Mapping[str, int], prompt_name: str | None = None
) -> None:
    """Check all bundles before any of them is loaded.

    `groups` are the sets of sentences on which a whitening may be fitted, by name, with their sizes.
    """
    for bundle in bundles:
        manifest = read_manifest(bundle)
        if manifest.input != "text":
            raise BundleError(f"{bundle}: takes vectors, not texts; it cannot be evaluated on sentences")
        try:
            Prompts.of(manifest).resolve(prompt_name)
        except UsageError as error:
            raise UsageError(f"{bundle}: {error}") from None
        if whitening.source == "bundle":
            _width(bundle, manifest, whitening.dimension)
        if whitening.fitted:
            if manifest.pooling == "sif":
                check_for_sif(whitening.spec.shrinkage)
            for name, n in groups.items():
                check_fit(n, manifest.unwhitened_width, whitening.spec, name)


@contextmanager
def open_embedder(
    bundle: Path, whitening: WhiteningSource, options: SessionOptions | None = None
) -> Iterator[Callable[[Sequence[str], str, Callable[[int], object]], NDArray[np.float32]]]:
    """Open a bundle to embed texts with a prompt: before whitening, unless the bundle's own whitening is evaluated.

    The function that is given also takes what is called with the number of texts of each batch.
    """
    manifest = read_manifest(bundle)
    own = whitening.source == "bundle"
    width = _width(bundle, manifest, whitening.dimension) if own else None
    output = OUTPUT if own or manifest.whitening is None else UNWHITENED_OUTPUT
    _, embedder = load_bundle(bundle, options)

    def embed(texts: Sequence[str], prompt: str, advance: Callable[[int], object]) -> NDArray[np.float32]:
        vectors = embedder.embed(texts, replace(embedder.options, prompt=prompt, outputs=(output,)), advance)
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            text = texts[int(finite.argmin())]
            raise DataError(f"{bundle}: the vector of {text[:80]!r} is not finite; check the bundle with whiten verify")
        if width is not None:
            vectors = unit(vectors[:, :width]) if manifest.normalize else vectors[:, :width]
        return vectors

    with embedder:
        yield embed


def embed_texts(
    bundle: Path,
    texts: Iterable[str],
    whitening: WhiteningSource,
    options: SessionOptions | None = None,
    reporter: Reporter | None = None,
    prompt_name: str | None = None,
) -> TextVectors:
    """Embed each distinct text once: before whitening, unless the bundle's own whitening is evaluated."""
    manifest = read_manifest(bundle)
    prompt = Prompts.of(manifest).resolve(prompt_name)
    distinct = list(dict.fromkeys(texts))
    with (
        open_embedder(bundle, whitening, options) as embed,
        (reporter or Reporter()).bar("texts", len(distinct)) as advance,
    ):
        vectors = embed(distinct, prompt, advance)
    rows = {text: row for row, text in enumerate(distinct)}
    return TextVectors(rows, vectors, common=whitening.source != "bundle" and manifest.pooling == "sif")


def _width(bundle: Path, manifest: Manifest, dimension: int | None) -> int | None:
    """Return how many leading coordinates are kept of a bundle's vectors; None for all."""
    if dimension is None or dimension == manifest.dimension:
        return None
    try:
        return leading_width(manifest, dimension, "dim")
    except UsageError as error:
        raise UsageError(f"{bundle}: {error}") from None
