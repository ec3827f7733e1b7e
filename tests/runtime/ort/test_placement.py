"""Test the placement of nodes on providers, from faked reports and from a real session."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from whiten import Encoder, ProviderError
from whiten_runtime.ort.session import Placement, check_placement, placement_of

TENSORRT, CUDA, CPU = "TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"


@dataclass
class Node:
    op_type: str


@dataclass
class Subgraph:
    ep_name: str
    operators: tuple[str, ...]

    def get_nodes(self) -> list[Node]:
        return [Node(name) for name in self.operators]


@dataclass
class Session:
    subgraphs: list[Subgraph]

    def get_provider_graph_assignment_info(self) -> list[Subgraph]:
        return self.subgraphs


def test_shape_nodes_on_the_cpu_are_allowed() -> None:
    placement = placement_of(
        Session([Subgraph(CUDA, ("MatMul", "Add")), Subgraph(CUDA, ("MatMul",)), Subgraph(CPU, ("Shape",))])
    )
    assert placement == Placement({CUDA: {"Add": 1, "MatMul": 2}, CPU: {"Shape": 1}})
    assert placement.nodes() == 4
    assert placement.share(CUDA) == 0.75
    check_placement(placement, [CUDA])


PARTS = [Subgraph(TENSORRT, ("MatMul", "Add")), Subgraph(CUDA, ("MatMul", "Attention")), Subgraph(CPU, ("Shape",))]
INT8 = [Subgraph(TENSORRT, ("Add",)), Subgraph(CPU, ("MatMulInteger", "MatMulInteger"))]


@pytest.mark.parametrize(
    ("parts", "providers", "message"),
    [
        (INT8, [TENSORRT], "no kernel for 2 MatMulInteger of this graph, which would run on the CPU"),
        (INT8, [TENSORRT, CUDA], f"{TENSORRT} and {CUDA} have no kernel for .*ask for CPUExecutionProvider too"),
        (INT8, [TENSORRT, CUDA, CPU], None),
        (PARTS, [TENSORRT, CUDA], None),  # what one accelerator leaves to the next is fine
        (PARTS, [TENSORRT], f"{TENSORRT} has no kernel for 1 Attention, 1 MatMul"),
        (INT8, [CUDA], "is active but runs no node"),
        (PARTS[1:], [TENSORRT, CUDA], "Tensorrt.* runs no node of this graph; use CUDAExecutionProvider for it"),
    ],
)
def test_matrix_products_run_where_they_were_asked_for(
    parts: list[Subgraph], providers: list[str], message: str | None
) -> None:
    placement = placement_of(Session(parts))
    if message is None:
        check_placement(placement, providers)
        return
    with pytest.raises(ProviderError, match=message):
        check_placement(placement, providers)


def test_missing_placement_report_is_accepted() -> None:
    placement = placement_of(object())
    assert placement.share(CPU) == 0
    check_placement(placement, [CUDA])


def test_placement_of_an_encoder(tiny_bundle: Path) -> None:
    pytest.importorskip("onnxruntime", "1.24", reason="onnxruntime reports no placement before 1.24")
    with Encoder(tiny_bundle, device="cpu") as encoder:
        assert encoder.placement.share(CPU) == 1
        assert encoder.placement.operators[CPU]["MatMul"] > 4
        assert encoder.placement.products_elsewhere(CPU) == {}
