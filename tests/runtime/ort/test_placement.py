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


def test_matrix_products_on_the_cpu_are_an_error() -> None:
    placement = placement_of(Session([Subgraph(CUDA, ("MatMul",)), Subgraph(CPU, ("MatMulInteger", "MatMulInteger"))]))
    with pytest.raises(ProviderError, match="no kernel for 2 MatMulInteger of this graph, which would run on the CPU"):
        check_placement(placement, [CUDA])


def test_provider_without_nodes_is_an_error() -> None:
    with pytest.raises(ProviderError, match="is active but runs no node"):
        check_placement(placement_of(Session([Subgraph(CPU, ("Gather",))])), [CUDA])


def test_what_one_accelerator_leaves_to_the_next_is_fine() -> None:
    parts = [Subgraph(TENSORRT, ("MatMul", "Add")), Subgraph(CUDA, ("MatMul", "Attention")), Subgraph(CPU, ("Shape",))]
    placement = placement_of(Session(parts))
    assert placement.products_elsewhere(TENSORRT) == {"MatMul": 1, "Attention": 1}
    assert placement.products_elsewhere(TENSORRT, CUDA) == {}
    check_placement(placement, [TENSORRT, CUDA])
    check_placement(placement, [TENSORRT, CUDA, CPU])
    with pytest.raises(ProviderError, match="TensorrtExecutionProvider has no kernel for 1 Attention, 1 MatMul"):
        check_placement(placement, [TENSORRT])


def test_the_cpu_is_a_fallback_that_must_be_asked_for() -> None:
    placement = placement_of(Session([Subgraph(TENSORRT, ("Add",)), Subgraph(CPU, ("MatMulInteger",))]))
    names = (
        "TensorrtExecutionProvider and CUDAExecutionProvider have no kernel for 1 MatMulInteger of this graph, which"
    )
    with pytest.raises(ProviderError, match=f"{names} would run on the CPU.*ask for CPUExecutionProvider too"):
        check_placement(placement, [TENSORRT, CUDA])
    check_placement(placement, [TENSORRT, CUDA, CPU])


def test_first_provider_without_nodes_is_an_error_even_if_the_next_has_them() -> None:
    placement = placement_of(Session([Subgraph(CUDA, ("MatMul",))]))
    with pytest.raises(ProviderError, match="Tensorrt.* runs no node of this graph; use CUDAExecutionProvider for it"):
        check_placement(placement, [TENSORRT, CUDA])


def test_missing_placement_report_is_accepted() -> None:
    placement = placement_of(object())
    assert placement.share(CPU) == 0
    check_placement(placement, [CUDA])


def test_placement_of_an_encoder(tiny_bundle: Path) -> None:
    with Encoder(tiny_bundle, device="cpu") as encoder:
        assert encoder.placement.share(CPU) == 1
        assert encoder.placement.operators[CPU]["MatMul"] > 4
        assert encoder.placement.products_elsewhere(CPU) == {}
