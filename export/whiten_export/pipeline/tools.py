"""Hold what the stages of an export work with."""

from dataclasses import dataclass
from pathlib import Path

from whiten_export.pipeline.apply import Fit
from whiten_export.sources.model import TokenModel
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import load_graph
from whiten_runtime.inference.options import Prompts
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter


@dataclass(frozen=True)
class Tools:
    """Source of an export, and what is opened for it once."""

    source: TokenModel  # model to export
    fit: Fit | None  # whitening to fit; None for none
    folder: Path  # folder that becomes the bundle
    tokenizer: Tokenizer  # tokenizer of the bundle
    options: SessionOptions  # options of the sessions that compute vectors
    report: Reporter  # receives stages, warnings and progress

    @property
    def corpus(self) -> Corpus:
        """The sentences to fit on, or the built-in ones."""
        return Corpus((BUILTIN_CORPUS,), None, None) if self.fit is None else self.fit.corpus

    @property
    def sentences(self) -> int:
        """The number of sentences of the corpus."""
        return self.corpus.count() if self.fit is None else self.fit.sentences

    def embedder(self, manifest: Manifest, graph: Path, value: str) -> Embedder:
        """Return what computes a value of a graph of this export for texts."""
        prompts = Prompts.of(manifest)
        return load_graph(graph, self.tokenizer, manifest.pad_token_id, self.options, value, prompts)
