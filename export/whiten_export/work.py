"""Hold what the steps of an export share: the source, the whitening to fit, and what is opened once."""

import ctypes
import dataclasses
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from whiten_export.align import Aligned
from whiten_export.sources.model import Source, TokenModel
from whiten_export.sources.stored import StoredBundle
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.graph import UNWHITENED_OUTPUT
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import load_graph, load_unwhitened
from whiten_runtime.inference.options import EncodeOptions, Prompts
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.ort.threads import ForkSafeLock
from whiten_runtime.reporter import Reporter
from whiten_whitening.development import Development
from whiten_whitening.maps import Shrinkage, WhiteningSpec, check_sample_count
from whiten_whitening.statistics import Statistics

UNWHITENED_GRAPH = "work/model.onnx"
"""Graph of a model before its head, in the folder that becomes the bundle; its directory is removed before the end."""


@dataclass(frozen=True)
class FitJob:
    """Says which whitening to fit, and on what."""

    spec: WhiteningSpec | None  # whitening that was asked for; None to choose one, or for a sif without whitening
    chooses: bool  # whether one is to be chosen
    dimension: int | None  # number of dimensions to keep; None for all
    shrinkage: Shrinkage  # shrinkage that a chosen whitening has, unless it is "none"
    normalize: bool | None  # whether whitened vectors are divided by their norm; None for what the draft says
    corpus: Corpus | None = None  # sentences to embed; None where there are statistics of the vectors
    sentences: int = 0  # number of sentences or vectors to fit on
    statistics: Statistics | None = None  # statistics that were computed before
    development: Development | None = None  # pairs with scores, or collections, to choose by
    aligned_to: Aligned | None = None  # bundle whose stored vectors are to stay usable
    required: bool = False  # whether no whitening is no choice
    prompt_name: str | None = None  # name of the prompt that each sentence gets; None for the default one

    def check_count(self, manifest: Manifest, different: int | None = None) -> str | None:
        """Check that there are enough vectors for the whitening that was asked for; return a warning, or None.

        `different` is the number of sentences that differ, where it is known.

        Raises:
            UsageError: there are too few.
        """
        if self.spec is None:
            return None
        count = self.sentences if different is None else different
        return check_sample_count(count, manifest.unwhitened_width, self.spec, sample_name(manifest))


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_lock = ForkSafeLock()


def one_at_a_time(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let threads wait for each other: a network is read and traced with settings of torch and transformers changed."""

    @wraps(function)
    def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        with _lock:
            return function(*arguments, **options)

    return call


def free_memory() -> None:
    """Free networks and graphs, which refer to themselves, and return their pages to the system: glibc would not."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def sample_name(manifest: Manifest) -> str:
    """Return what a whitening of a draft is fitted on, for messages."""
    return "vectors" if manifest.input == "vectors" else "sentences"


@dataclass(frozen=True)
class Work:
    """Holds what an export starts from, and what its steps use."""

    source: Source  # where it starts
    draft: Manifest  # manifest before the first step; its names, lengths and prompts are final
    job: FitJob | None  # whitening to fit; None for none
    target: Path  # the bundle's place
    folder: Path  # hidden folder that becomes the bundle
    options: SessionOptions  # options of the sessions that compute vectors
    report: Reporter  # receives stages, warnings and progress

    @property
    def of_model(self) -> bool:
        """Return whether it starts from a model, whose graph has to be made and proven."""
        return isinstance(self.source, TokenModel)

    @property
    def model(self) -> TokenModel:
        assert isinstance(self.source, TokenModel)
        return self.source

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.folder / TOKENIZER_FILE, self.draft.max_seq_length, self.draft.truncation_side)

    @cached_property
    def corpus(self) -> Corpus:
        """The sentences to fit on, or the built-in ones."""
        corpus = None if self.job is None else self.job.corpus
        return corpus or Corpus((BUILTIN_CORPUS,), None, None)

    @cached_property
    def sentences(self) -> int:
        return self.corpus.count() if self.job is None else self.job.sentences

    def embedder(self, graph: Path, options: SessionOptions | None = None) -> Embedder:
        """Return what computes the vectors before whitening of texts by a graph of this export."""
        prompts, on = Prompts.of(self.draft), options or self.options
        return load_graph(graph, self.tokenizer, self.draft.pad_token_id, on, UNWHITENED_OUTPUT, prompts)

    def fit_options(self, embedder: Embedder) -> EncodeOptions:
        """Return the options with which sentences of the corpus are embedded for a fit."""
        name = None if self.job is None else self.job.prompt_name
        return dataclasses.replace(embedder.options, prompt=Prompts.of(self.draft).resolve(name))

    def unwhitened(self) -> Embedder:
        """Return what computes the vectors before whitening for texts."""
        if self.of_model:
            return self.embedder(self.folder / UNWHITENED_GRAPH)
        assert isinstance(self.source, StoredBundle)  # a file of vectors brings its statistics
        return load_unwhitened(self.source.path, self.options, self.source.sha256)[1]
