"""Read on which execution provider onnxruntime put each node of a graph."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from whiten_runtime.errors import ProviderError

RECORD = ("session.record_ep_graph_assignment_info", "1")
"""Session option that `placement_of` needs; without it there is nothing to read."""

PRODUCTS = frozenset(
    {
        "Attention",
        "FusedMatMul",
        "Gemm",
        "MatMul",
        "MatMulInteger",
        "MatMulNBits",
        "MultiHeadAttention",
        "QAttention",
    }
)
"""Operators that multiply matrices. If one is on the CPU, most of the work is there, and the GPU waits for copies."""


class _Node(Protocol):
    op_type: str


class _Subgraph(Protocol):
    ep_name: str

    def get_nodes(self) -> Iterable[_Node]: ...


@dataclass(frozen=True)
class Placement:
    """Holds the nodes of each provider, after onnxruntime's first round of optimisation; later fusions are not counted.

    Attributes:
        operators: number of nodes by provider and operator.
    """

    operators: Mapping[str, Mapping[str, int]]

    def nodes(self, provider: str | None = None) -> int:
        """Return the number of nodes on a provider, or on all of them."""
        found = self.operators.values() if provider is None else [self.operators.get(provider, {})]
        return sum(sum(counts.values()) for counts in found)

    def share(self, provider: str) -> float:
        """Return the share of the nodes that are on a provider, 0 to 1."""
        return self.nodes(provider) / max(1, self.nodes())

    def products_elsewhere(self, *providers: str) -> dict[str, int]:
        """Return the number of matrix products that are on other providers than these, by operator."""
        found: Counter[str] = Counter()
        for name, counts in self.operators.items():
            if name not in providers:
                found.update({operator: count for operator, count in counts.items() if operator in PRODUCTS})
        return dict(found)


def placement_of(session: Any) -> Placement:
    """Return the placement of a session that was created with `RECORD`; it is empty for an onnxruntime before 1.24."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return Placement({})
    counts: dict[str, Counter[str]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        counts.setdefault(subgraph.ep_name, Counter()).update(node.op_type for node in subgraph.get_nodes())
    return Placement({name: dict(sorted(found.items())) for name, found in counts.items()})


def check_placement(placement: Placement, providers: Sequence[str]) -> None:
    """Check that the first provider runs nodes of the graph, and that the providers asked for run its matrix products.

    What one accelerator leaves to the next is fine. onnxruntime adds the CPU behind them all; matrix products may fall
    back on it only if it was asked for.
    """
    provider = providers[0]
    if not placement.operators:
        return
    if not placement.nodes(provider):
        other = next((name for name in providers[1:] if placement.nodes(name)), "CPUExecutionProvider")
        raise ProviderError(f"{provider} is active but runs no node of this graph; use {other} for it")
    if elsewhere := placement.products_elsewhere(*providers):
        what = ", ".join(f"{count} {operator}" for operator, count in elsewhere.items())
        lacking = f"{provider} has" if len(providers) == 1 else f"{' and '.join(providers)} have"
        raise ProviderError(
            f"{lacking} no kernel for {what} of this graph, which would run on the CPU; export it with "
            "--precision fp32 or fp16, or ask for CPUExecutionProvider too"
        )
