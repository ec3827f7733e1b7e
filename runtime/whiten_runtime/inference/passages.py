"""Embed the passages of one text from a single pass over it (late chunking)."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.bundle.records import SHORT, Pooling
from whiten_runtime.bundle.token_weights import with_token_weights
from whiten_runtime.errors import TextError, TooLongError, UsageError, described
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.options import TEXT, EncodeOptions, with_prompt
from whiten_runtime.inference.sessions import ForkSafeSession
from whiten_runtime.inference.tokenizer import Token

Passages = NDArray[np.intp]
"""First character of each passage and the one after its last, [n, 2]."""


class PassageEmbedder:
    """Embeds passages with the graph of an embedder, which a session of its own holds from the first call on.

    Args:
        pooling: its pooling.
        embedder: what embeds its texts.
    """

    def __init__(self, pooling: Pooling | None, embedder: Embedder) -> None:
        self._pooling, self._embedder = pooling, embedder
        graph = embedder.engine.graph
        self._session = ForkSafeSession(lambda: graph.create_session(None, edit=with_token_weights))

    def embed(self, text: str, spans: Iterable[Sequence[int]], options: EncodeOptions) -> NDArray[Any]:
        """Return the finished vectors of passages, [n, width]; `Encoder.encode_passages` says what is raised."""
        if self._pooling != "mean":
            raise UsageError(
                f"the bundle pools by {self._pooling}; passages need a bundle that pools by mean: embed each alone"
            )
        passages = checked_spans(text, spans)
        tokens = self._tokens(text, options.prompt)
        prompt = options.prompt if TEXT in options.prompt else options.prompt + TEXT
        left_out = 0 if options.include_prompt else self._embedder.tokenizer.prompt_tokens(options.prompt)
        weights = token_weights(tokens, passages, prompt.index(TEXT), len(text), left_out)
        ids = np.array([[token.id for token in tokens]], np.int64)
        names = [value.name for value in self._session.get().get_inputs()]
        feed = dict(zip(names, (ids, np.ones_like(ids), weights), strict=True))
        with self._embedder.engine.room(len(tokens), 1):
            vectors = self._session.run([OUTPUT], feed, shrink=len(tokens) > SHORT)[0]
        return options.finish(vectors, "spans")

    def close(self) -> None:
        self._session.close()

    def _tokens(self, text: str, prompt: str) -> list[Token]:
        most, limit = self._embedder.max_characters, self._embedder.tokenizer.max_seq_length
        if len(text) > most:
            raise TooLongError(len(text), most, "characters", _PARTS)
        tokens = self._embedder.tokenizer.tokens(with_prompt(prompt, [text])[0])
        if len(tokens) > limit:
            raise TooLongError(len(tokens), limit, "tokens", _PARTS)
        return tokens


_PARTS = "cut it between passages, and embed those of each part"


def checked_spans(text: str, spans: Iterable[Sequence[int]]) -> Passages:
    if not isinstance(text, str):
        raise TextError(f"text is {described(text)}; wanted one str")
    if not isinstance(spans, Iterable):
        raise UsageError(f"spans is {described(spans)}; wanted a list of (start, end)")
    pairs = []
    for index, span in enumerate(spans):
        try:
            start, end = map(operator.index, span)
        except (TypeError, ValueError):
            start, end = -1, -1
        if not 0 <= start <= end <= len(text):
            raise UsageError(
                f"spans[{index}] is {described(span)}; wanted (start, end), the first character of a passage and the "
                f"one after its last, in a text of {len(text)} characters"
            )
        pairs.append((start, end))
    return np.array(pairs, np.intp).reshape(-1, 2)


def windows_of(tokens: Sequence[Token], size: int, length: int) -> Passages:
    """Return the spans of passages of so many tokens, which cover a text of `length` characters one after another.

    Several tokens may be of one character, the whole of which is of one passage.
    """
    bounds = {token.end for token in tokens[size - 1 : -1 : size]}  # the last token ends no passage: the text does
    ends = sorted({*bounds, length} - {0}) or [0]
    return np.array([[0, *ends[:-1]], ends], np.intp).T


def token_weights(
    tokens: Sequence[Token], passages: Passages, start: int, length: int, left_out: int = 0
) -> NDArray[np.float32]:
    """Return the weight of each token in the mean of each passage, float32 [n, tokens].

    A token is of the passage that has its last character. Special tokens and those of a prompt are of every passage, as
    `encode` pools them with every text.

    Args:
        tokens: tokens of the text with its prompt.
        passages: spans, in characters of the text without its prompt.
        start: index of the first character of the text after the prompt.
        length: number of characters of the text.
        left_out: number of tokens at the beginning that the bundle leaves out of its pooling.
    """
    ends = np.array([token.end for token in tokens]) - start
    special = np.array([token.special for token in tokens])
    everywhere = special | (ends <= 0) | (ends > length)
    own = (passages[:, :1] < ends) & (ends <= passages[:, 1:])
    pooled = (own | everywhere) & (np.arange(len(tokens)) >= left_out)
    counts = pooled.sum(axis=1, keepdims=True, dtype=np.float32)
    return np.asarray(pooled / np.maximum(counts, np.float32(1)), np.float32)
