"""Test that hidden states are compared with what blocks read and give."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from whiten_export.sources.networks.blocks import check_blocks
from whiten_runtime import WhitenError


class Network(nn.Module):
    """Some blocks after an embedding; `called` decides whether they are called or only their `forward` is."""

    def __init__(self, called: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.called = called
        self.embedding = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)

    def states(self, ids: Tensor, mask: Tensor) -> list[Tensor]:
        found = [self.embedding(ids)]
        for block in self.blocks:
            found.append(block(found[-1]) if self.called else block.forward(found[-1]))
        return [*found[:-1], self.norm(found[-1])]


def test_states_that_blocks_read_and_a_norm_of_the_last_pass() -> None:
    network = Network()
    assert check_blocks(network, network.states, 3, "small") == 3


def shifted(states: list[Tensor]) -> list[Tensor]:
    return [*states[1:], states[-1]]


def halved(states: list[Tensor]) -> list[Tensor]:
    return [*states[:-1], states[1]]


@pytest.mark.parametrize(("change", "message"), [(shifted, "hidden state 0"), (halved, "last hidden state")])
def test_other_states_are_refused(change: Callable[[list[Tensor]], Sequence[Tensor]], message: str) -> None:
    network = Network()
    with pytest.raises(WhitenError, match=message):
        check_blocks(network, lambda ids, mask: change(network.states(ids, mask)), 3, "small")


def test_blocks_that_are_never_called_are_not_checked() -> None:
    network = Network(called=False)
    assert check_blocks(network, network.states, 3, "small") == 0


def test_probes_are_on_the_device_of_the_network() -> None:
    network = Network().to("meta")
    devices = []

    def states_of(ids: Tensor, mask: Tensor) -> list[Tensor]:
        devices.extend([ids.device.type, mask.device.type])
        return []

    assert check_blocks(network, states_of, 3, "small") == 0
    assert set(devices) == {"meta"}
