"""Conclude from the nodes that this project appends what a graph computes: layers, pooling, prompts, and its end.

What cannot be concluded, for instance because the graph is of another program, is None and proves nothing.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from whiten_runtime.bundle.graph_facts import IDS, GraphFacts, Node
from whiten_runtime.bundle.graph_names import OUTPUT, UNWHITENED_OUTPUT
from whiten_runtime.bundle.records import PoolingMode

MEAN, WEIGHT = "whitening.mean", "whitening.weight"
POSITIONS = ("embeddings.positions", "embeddings.positions.half")
"""Table of positions that an export folds, of as many rows as the maximum number of tokens."""

_STATE = re.compile(r"(?:source\.)?hidden_states\.(\d+)")
_NETWORK_POSITIONS = re.compile(r"(.*\.)?(position_embeddings|wpe)\.weight(\.half)?")
_POOLER, _PROMPTS_APART = "whiten.pooler.weight", "whiten.pooled"
_QUANTIZED, _HALF, _FULL = "quantized.", ".half", ".full"
_SMALL = 1024
_CHANGED = ("whiten.", "whitening.", "embeddings.")
"""Beginnings of the names of weights that stay float32 in every precision."""


@dataclass(frozen=True)
class GraphClaims:
    """Holds what a graph provably computes.

    Attributes:
        layers: indices of the hidden states that are pooled, in their order.
        modes: modes of the pooling, in their order.
        prompts_apart: whether the tokens of a prompt can be left out of the pooling.
        mapped: whether the vectors pass Sub and MatMul with the whitening's weights.
        normalized: whether the end divides by the L2 norm.
        rounded: whether the end rounds to whole numbers.
        both: whether the vector before whitening is an output.
        positions: number of rows of the table of positions that an export folded.
        network_positions: number of rows of the network's own table of positions.
        rows: number of token ids that the tables of the embeddings have rows for.
        quantized: number of weights that an export turned into int8.
        halved: number of weights that an export turned into float16.
        large: number of large weights of the network that are neither.
    """

    layers: tuple[int, ...] | None
    modes: tuple[PoolingMode, ...] | None
    prompts_apart: bool | None
    mapped: bool
    normalized: bool | None
    rounded: bool | None
    both: bool
    positions: int | None
    network_positions: int | None
    rows: int | None
    quantized: int
    halved: int
    large: int


def claims_of(facts: GraphFacts) -> GraphClaims:
    """Return what a graph provably computes."""
    made = {name: node for node in facts.nodes for name in node.outputs}
    pooled = list(_pooled(facts, made))
    modes = _modes([mode for mode, _ in pooled], [state for _, state in pooled])
    end = made.get(OUTPUT)
    return GraphClaims(
        layers=_layers([state for _, state in pooled]),
        modes=modes,
        prompts_apart=None if modes is None else _PROMPTS_APART in facts.tensors,
        mapped=_uses(facts.nodes, "Sub", MEAN) and _uses(facts.nodes, "MatMul", WEIGHT),
        normalized=None if end is None else _divides_by_norm(end, made),
        rounded=None if end is None else end.operator == "Round",
        both=UNWHITENED_OUTPUT in facts.outputs,
        positions=next((_rows(facts, name) for name in POSITIONS if name in facts.tensors), None),
        network_positions=min(
            (rows for name in facts.tensors if _NETWORK_POSITIONS.fullmatch(name) and (rows := _rows(facts, name))),
            default=None,
        ),
        rows=min(_looked_up(facts), default=None),
        quantized=sum(name.startswith(_QUANTIZED) for name in facts.tensors),
        halved=sum(name.endswith(_HALF) for name in facts.tensors),
        large=sum(_is_large(facts, name) for name in facts.tensors),
    )


def _pooled(facts: GraphFacts, made: Mapping[str, Node]) -> Iterator[tuple[PoolingMode | None, str]]:
    """Yield (mode, name of the hidden state) of every product of weights and a hidden state, and every maximum."""
    for node in facts.nodes:
        if node.operator == "Where" and len(node.inputs) == 3:
            yield "max", node.inputs[1]
        elif node.operator == "MatMul" and len(node.inputs) == 2 and node.inputs[1] not in facts.tensors:
            row = made.get(node.inputs[0])
            if row is not None and row.operator == "Unsqueeze":
                mode = _mode(row.inputs[0], facts, made)
                yield ("pooler" if mode == "cls" and _enters_pooler(node, facts.nodes) else mode), node.inputs[1]


def _mode(weights: str, facts: GraphFacts, made: Mapping[str, Node]) -> PoolingMode | None:
    """Return the mode that computes these weights of the tokens, as the export writes it; None if it is another."""
    node = made.get(weights)
    if node is None or len(node.inputs) != 2:
        return None
    first, second = (made.get(name) for name in node.inputs)
    operators = (node.operator, first and first.operator, second and second.operator)
    if operators == ("Div", "Cast", "Max"):
        return "mean"
    if operators == ("Div", "Cast", "Sqrt"):
        return "mean_sqrt_len"
    if operators == ("Div", "Mul", "Max"):
        return "weightedmean"
    if operators == ("Mul", "Add", None):
        return "cls_avg"
    if operators == ("Mul", "Cast", "Cast") and second is not None:
        equal = made.get(second.inputs[0])
        if equal is not None and equal.operator == "Equal":
            return "cls" if equal.inputs[1] in facts.tensors else "last"
    return None


def _enters_pooler(product: Node, nodes: tuple[Node, ...]) -> bool:
    """Return whether a pooled state, squeezed, enters the network's dense layer over the first token."""
    squeezed = {name for node in nodes if set(node.inputs) & set(product.outputs) for name in node.outputs}
    return any(node.operator == "MatMul" and _POOLER in node.inputs and node.inputs[0] in squeezed for node in nodes)


def _modes(modes: list[PoolingMode | None], states: list[str]) -> tuple[PoolingMode, ...] | None:
    """Return the modes of each hidden state; None unless all are known and the same for every state."""
    known = tuple(mode for mode in modes if mode is not None)
    count = states.count(states[0]) if states else 0
    if not count or len(known) < len(modes) or known != known[:count] * (len(known) // count):
        return None
    return known[:count]


def _layers(states: list[str]) -> tuple[int, ...] | None:
    """Return the indices of the hidden states, each once; None if one has another name."""
    found = [_STATE.fullmatch(state) for state in dict.fromkeys(states)]
    layers = tuple(int(state[1]) for state in found if state is not None)
    return layers if layers and len(layers) == len(found) else None


def _uses(nodes: tuple[Node, ...], operator: str, tensor: str) -> bool:
    return any(node.operator == operator and node.inputs[1:] == (tensor,) for node in nodes)


def _divides_by_norm(end: Node, made: Mapping[str, Node]) -> bool:
    """Return whether a node is x / max(sqrt(sum(x x)), least)."""
    chain, node = [], end
    for index in (1, 0, 0, 0):
        if len(node.inputs) <= index or (below := made.get(node.inputs[index])) is None:
            return False
        chain.append(below.operator)
        node = below
    same = node.inputs == (end.inputs[0], end.inputs[0])
    return (end.operator, *chain) == ("Div", "Max", "Sqrt", "ReduceSum", "Mul") and same


def _looked_up(facts: GraphFacts) -> Iterator[int]:
    """Yield the number of rows of every table in which a row is looked up by a token's id."""
    ids = {IDS}
    for node in facts.nodes:
        if node.operator != "Gather" and node.inputs and node.inputs[0] in ids and len(node.outputs) == 1:
            ids |= {*node.outputs} if node.operator in ("Cast", "Identity", "Reshape") else set()
        elif node.operator == "Gather" and node.inputs[1:] and node.inputs[1] in ids and node.axis == 0:
            table = node.inputs[0]
            stored = table if table in facts.tensors else table.removesuffix(_FULL) + _HALF
            if rows := _rows(facts, stored):
                yield rows


def _rows(facts: GraphFacts, name: str) -> int | None:
    tensor = facts.tensors.get(name)
    return tensor.shape[0] if tensor is not None and tensor.shape else None


def _is_large(facts: GraphFacts, name: str) -> bool:
    shape = [size or 0 for size in facts.tensors[name].shape]
    product = 1
    for size in shape:
        product *= size
    ours = name.startswith((*_CHANGED, _QUANTIZED)) or name.endswith(_HALF)
    return len(shape) == 2 and product >= _SMALL and facts.tensors[name].kind == 1 and not ours
