"""Embed a sample of each kind of text in the built-in corpus: a second sample beside the corpus of a fit."""

from collections.abc import Mapping

from whiten_export.corpus.fitting import embed_value
from whiten_runtime.files.builtin import builtin_sentences
from whiten_runtime.inference.embedder import Embedder
from whiten_whitening.moments import Moments

_SENTENCES = 96
"""Number of sentences of each kind."""


def kind_moments(embedder: Embedder, value: str) -> Mapping[str, Moments]:
    """Return the moments of a value of the graph over sentences of each kind."""
    texts: dict[str, list[str]] = {}
    for kind, sentence in builtin_sentences():
        found = texts.setdefault(kind, [])
        if len(found) < _SENTENCES:
            found.append(sentence)
    return {kind: Moments.of(embed_value(sentences, embedder, value)) for kind, sentences in texts.items()}
