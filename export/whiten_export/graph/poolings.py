"""Define every pooling once: the phrase for the help, the definition in numpy, and the nodes of the graph.

A new pooling is its name in `PoolingMode` of the bundle format, a row of `POOLINGS`, and the functions of that row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whiten_export.proof.reference import Float64Array
from whiten_runtime.bundle.manifest import Pooling, PoolingMode, pooling_modes

if TYPE_CHECKING:
    import onnx_ir as ir

    from whiten_export.graph.build import GraphBuilder

_AXIS = "whiten.axis"
_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Tokens:
    """Tokens of a batch that are pooled, float64 [batch_size, sequence_length] each."""

    pooled: Float64Array  # 1 for a token that is pooled, else 0
    order: Float64Array  # number of pooled tokens up to this one
    position: NDArray[np.int64]  # number of tokens up to this one, those of a prompt included
    count: Float64Array  # number of pooled tokens of a text, at least 1, [batch_size, 1]

    @classmethod
    def of(cls, attention_mask: NDArray[np.int64]) -> "Tokens":
        """Return the tokens of a mask that is 1 for a token, 2 for one that is left out, and 0 for padding."""
        pooled = (attention_mask == 1).astype(np.float64)
        count = np.maximum(pooled.sum(axis=1, keepdims=True), 1)
        return cls(pooled, np.cumsum(pooled, axis=1), np.cumsum(attention_mask > 0, axis=1), count)

    @property
    def first(self) -> Float64Array:
        """Return 1 for the first token that is pooled, else 0."""
        return np.asarray(self.pooled * (self.order == 1))


def weighted_sum(state: NDArray[Any], weights: Float64Array) -> Float64Array:
    """Return the weighted sum over the tokens of a state [batch_size, sequence_length, d]: [batch_size, d]."""
    return np.asarray(np.einsum("bs,bsd->bd", weights, state.astype(np.float64)))


def _largest(state: NDArray[Any], pooled: Float64Array) -> Float64Array:
    chosen = pooled == 1
    highest = np.where(chosen[:, :, None], state.astype(np.float64), -np.inf).max(axis=1)
    return np.where(chosen.any(axis=1, keepdims=True), highest, 0.0)


def _position_weights(tokens: Tokens) -> Float64Array:
    positions = tokens.pooled * tokens.position
    return np.asarray(positions / np.maximum(positions.sum(axis=1, keepdims=True), 1))


def append_sum(builder: "GraphBuilder", state: "ir.Value", weights: "ir.Value") -> "ir.Value":
    """Append the weighted sum over the tokens of a state."""
    row = builder.op("Unsqueeze", weights, builder.integers(1))
    return builder.op("Squeeze", builder.op("MatMul", row, state), builder.integers(1))


def _append_largest(builder: "GraphBuilder", state: "ir.Value", pooled: "ir.Value") -> "ir.Value":
    """Append the maximum over the tokens; zeros for a text without one."""
    token = builder.op("Unsqueeze", builder.boolean(pooled), builder.integers(2))
    masked = builder.op("Where", token, state, builder.scalar(_LOWEST))
    highest = builder.op("ReduceMax", masked, builder.integers(1), keepdims=0)
    some = builder.op("ReduceMax", pooled, builder.integers(1), keepdims=1)
    return builder.op("Mul", highest, some)


@dataclass(frozen=True)
class GraphTokens:
    """Values of a graph that say which tokens are pooled, float32 [batch_size, sequence_length]."""

    builder: "GraphBuilder"  # builder of the graph
    pooled: "ir.Value"  # 1 for a token that is pooled, else 0
    count: "ir.Value"  # number of pooled tokens of a text, [batch_size, 1]
    prompts_apart: bool  # whether the mask is 2 for the tokens of a prompt, which are left out

    def op(self, kind: str, *inputs: "ir.Value") -> "ir.Value":
        """Append a node."""
        return self.builder.op(kind, *inputs)

    def chosen(self, number: "ir.Value | int") -> "ir.Value":
        """Append 1 for the pooled token of this number, counted from 1, else 0."""
        order = self.op("CumSum", self.pooled, self.builder.constant(_AXIS, np.int64(1)))
        wanted = self.builder.scalar(number) if isinstance(number, int) else number
        return self.op("Mul", self.pooled, self.builder.float32(self.op("Equal", order, wanted)))

    @property
    def mean(self) -> "ir.Value":
        """Append the weights of the mean."""
        return self.op("Div", self.pooled, self.op("Max", self.count, self.builder.scalar(1)))


def _append_mean_and_first(tokens: GraphTokens) -> "ir.Value":
    both = tokens.op("Add", tokens.chosen(1), tokens.mean)
    return tokens.op("Mul", both, tokens.builder.scalar(0.5))


def _append_mean_sqrt_len(tokens: GraphTokens) -> "ir.Value":
    count = tokens.op("Max", tokens.count, tokens.builder.scalar(1))
    return tokens.op("Div", tokens.pooled, tokens.op("Sqrt", count))


def _append_position_weights(tokens: GraphTokens) -> "ir.Value":
    builder, counted = tokens.builder, tokens.pooled
    axis = builder.constant(_AXIS, np.int64(1))
    if tokens.prompts_apart:
        mask = tokens.op("Min", builder.input("attention_mask"), builder.constant("whiten.token", np.int64(1)))
        counted = builder.float32(mask)
    positions = tokens.op("Mul", tokens.pooled, tokens.op("CumSum", counted, axis))
    total = builder.op("ReduceSum", positions, builder.integers(1), keepdims=1)
    return tokens.op("Div", positions, tokens.op("Max", total, builder.scalar(1)))


@dataclass(frozen=True)
class PoolingRow:
    """Defines a pooling in numpy and as nodes of a graph; a text without a token has the zero vector."""

    phrase: str  # what it is, for the help
    # weights of the tokens, float64 [batch_size, sequence_length]; None for a pooling that belongs to a kind of model
    weights: Callable[[Tokens], Float64Array] | None
    append_weights: Callable[[GraphTokens], "ir.Value"] | None  # the same in a graph; None for 1 for each pooled token
    # vector of a text, [batch_size, d], from a state and the weights
    reduce: Callable[[NDArray[Any], Float64Array], Float64Array] = weighted_sum
    append: Callable[["GraphBuilder", "ir.Value", "ir.Value"], "ir.Value"] = append_sum  # the same in a graph
    # whether other programs have no vector of no tokens: sentence-transformers takes the prompt, or minus infinity
    needs_token: bool = False


POOLINGS: Mapping[PoolingMode, PoolingRow] = {
    "mean": PoolingRow("mean of all tokens", lambda tokens: tokens.pooled / tokens.count, lambda tokens: tokens.mean),
    "cls": PoolingRow("first token", lambda tokens: tokens.first, lambda tokens: tokens.chosen(1), needs_token=True),
    "last": PoolingRow(
        "last token",
        lambda tokens: tokens.pooled * (tokens.order == tokens.order[:, -1:]),
        lambda tokens: tokens.chosen(tokens.count),
    ),
    "max": PoolingRow(
        "largest of each coordinate",
        lambda tokens: tokens.pooled,
        None,
        reduce=_largest,
        append=_append_largest,
        needs_token=True,
    ),
    "weightedmean": PoolingRow("mean that weighs later tokens more", _position_weights, _append_position_weights),
    "mean_sqrt_len": PoolingRow(
        "sum over the root of the number of tokens",
        lambda tokens: tokens.pooled / np.sqrt(tokens.count),
        _append_mean_sqrt_len,
    ),
    "cls_avg": PoolingRow(
        "half cls and half mean",
        lambda tokens: (tokens.first + tokens.pooled / tokens.count) / 2,
        _append_mean_and_first,
    ),
    "pooler": PoolingRow(
        "the network's own dense and tanh over the first token",
        None,
        lambda tokens: tokens.chosen(1),
    ),
    "sif": PoolingRow("of words, a mean weighed by frequency without what all sentences share", None, None),
}


def pool(states: Sequence[NDArray[Any]], attention_mask: NDArray[np.int64], pooling: Pooling) -> Float64Array:
    """Pool each state [batch_size, sequence_length, d]; the results of several modes are concatenated."""
    tokens, parts = Tokens.of(attention_mask), []
    for mode in pooling_modes(pooling):
        row = POOLINGS[mode]
        assert row.weights is not None  # networks apply their pooler themselves, words have own weights
        weights = row.weights(tokens)
        parts.append(np.stack([row.reduce(state, weights) for state in states]))
    return np.concatenate(parts, axis=2)
