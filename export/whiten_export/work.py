"""Hold what the steps of an export share: the source, the whitening to fit, and what is opened once."""

import ctypes
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from whiten_export.fit import FitJob
from whiten_export.sources.model import TokenModel
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.graph import UNWHITENED_OUTPUT
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import load_graph
from whiten_runtime.inference.options import Prompts
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.process import ForkSafeLock
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter

UNWHITENED_GRAPH = "work/model.onnx"
"""Graph of a model before its head, in the folder that becomes the bundle; its directory is removed before the end."""


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


@dataclass(frozen=True)
class Work:
    """Holds what the steps of a model's export use."""

    model: TokenModel  # model to export
    draft: Manifest  # manifest before the first step; its names, lengths and prompts are final
    job: FitJob | None  # whitening to fit; None for none
    corpus: Corpus  # sentences to fit it on, to calibrate int8 on, and to compare tokenizers on
    folder: Path  # hidden folder that becomes the bundle
    options: SessionOptions  # options of the sessions that compute vectors
    report: Reporter  # receives stages, warnings and progress

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.folder / TOKENIZER_FILE, self.draft.max_seq_length, self.draft.truncation_side)

    @cached_property
    def sentences(self) -> int:
        return self.corpus.count() if self.job is None else self.job.sentences

    def embedder(self, graph: Path, options: SessionOptions | None = None) -> Embedder:
        """Return what computes the vectors before whitening of texts by a graph of this export."""
        draft, on = self.draft, options or self.options
        most = draft.max_characters or None
        return load_graph(graph, self.tokenizer, draft.pad_token_id, on, UNWHITENED_OUTPUT, Prompts.of(draft), most)
