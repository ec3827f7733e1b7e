"""Embed the passages of one text from a single pass over it (late chunking).

A graph that pools by the mean gets a third input, the weights of the tokens, for several vectors from one text: the
graph of a bundle is edited in memory, as protobuf and without the onnx package, and the bundle's file stays as it is.
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.graph import OUTPUT, Span, spans
from whiten_runtime.bundle.manifest import SHORT, Pooling
from whiten_runtime.errors import BundleError, TextError, TooLongError, UsageError, described
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.engine import ForkSafeSession
from whiten_runtime.inference.options import TEXT, EncodeOptions, with_prompt
from whiten_runtime.inference.tokenizer import Token

_OF_POOLING = "whiten.value_"
"""Prefix of the names of values that an export computes from the hidden states, up to the head."""

# Numbers of fields, by message.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_SHAPES = 1, 11, 12, 13
_NODE_INPUT, _NODE_OUTPUT, _NODE_OP_TYPE = 1, 2, 4
_FLOAT, _INT64 = 1, 7


class _Node(NamedTuple):
    operator: str
    inputs: list[str]
    outputs: list[str]
    place: Span


def with_token_weights(model: bytes) -> bytes:
    """Return a model that takes the weights of the tokens as its third input, and has only the finished vectors.

    The mean of a text's tokens is a product: weights, 1 / n for each of n tokens, times hidden states. The new graph
    takes weights in place of the node that computes them, so that one text gives a vector for each row of weights.

    Args:
        model: content of `onnx/model.onnx`.

    Returns:
        A model with the inputs `input_ids` and `attention_mask`, int64 [1, sequence_length], and weights, float32
        [passages, sequence_length]; its output is `sentence_embedding`, float32 [passages, k].

    Raises:
        BundleError: the graph has no such node.
    """
    start, end = next(place for number, place in spans(model, 0, len(model)) if number == _MODEL_GRAPH)
    weights = _weights_node(list(_nodes(model, start, end)))
    described = (
        _GRAPH_INPUT,
        _GRAPH_OUTPUT,
        _GRAPH_SHAPES,
    )  # shapes in which weights and texts have one number of rows
    fields = [
        _field(number, model[slice(*place)])
        for number, place in spans(model, start, end)
        if number not in described and place != weights.place
    ]
    inputs = [
        _value("input_ids", _INT64, 1, "sequence_length"),
        _value("attention_mask", _INT64, 1, "sequence_length"),
        _value(weights.outputs[0], _FLOAT, "passages", "sequence_length"),
    ]
    output = _field(_GRAPH_OUTPUT, _value(OUTPUT, _FLOAT, "passages", "dimension"))
    graph = b"".join([*fields, *(_field(_GRAPH_INPUT, value) for value in inputs), output])
    head = start - len(_varint(end - start)) - 1
    return model[:head] + _field(_MODEL_GRAPH, graph) + model[end:]


def _nodes(model: bytes, start: int, end: int) -> Iterator[_Node]:
    for number, place in spans(model, start, end):
        if number != _GRAPH_NODE:
            continue
        texts: dict[int, list[str]] = {_NODE_INPUT: [], _NODE_OUTPUT: [], _NODE_OP_TYPE: []}
        for part, (first, last) in spans(model, *place):
            if part in texts:
                texts[part].append(model[first:last].decode("utf-8"))
        yield _Node(texts[_NODE_OP_TYPE][0], texts[_NODE_INPUT], texts[_NODE_OUTPUT], place)


def _weights_node(nodes: Sequence[_Node]) -> _Node:
    """Return the node that divides 1 for each token by their number: its rows are multiplied by hidden states."""
    rows = {node.inputs[0] for node in nodes if node.operator == "Unsqueeze"}
    weights = [
        node
        for node in nodes
        if node.operator == "Div" and node.outputs[0] in rows and node.outputs[0].startswith(_OF_POOLING)
    ]
    if len(weights) != 1:
        raise BundleError(
            "the graph does not compute the mean of its tokens as whiten-export writes it for networks; embed each "
            "passage alone"
        )
    return weights[0]


def _value(name: str, kind: int, *shape: int | str) -> bytes:
    sizes = [_varint(1 << 3) + _varint(size) if isinstance(size, int) else _field(2, size.encode()) for size in shape]
    tensor = _varint(1 << 3) + _varint(kind) + _field(2, b"".join(_field(1, size) for size in sizes))
    return _field(1, name.encode()) + _field(2, _field(1, tensor))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


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
