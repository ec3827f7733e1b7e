"""Test that hidden state l of every family is what block l + 1 reads, and the last one what the last block gives."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.checkpoints import family_network
from support.families import FAMILIES, LAYERS
from whiten_export.sources.pytorch import hidden_states

OTHER_BLOCKS = ("albert", "xlm")
"""ALBERT has one block, which runs several times; XLM has lists of parts of blocks."""

NORMED = ("gpt2", "llama", "modernbert", "t5")
"""Families with a norm behind the last block."""


def blocks_of(network: nn.Module) -> list[nn.Module]:
    (blocks,) = (
        list(module)
        for module in network.modules()
        if isinstance(module, nn.ModuleList) and len(module) == LAYERS and len({type(block) for block in module}) == 1
    )
    return blocks


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in OTHER_BLOCKS])
def test_hidden_states_are_those_of_the_blocks(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = family_network(family).double()
    read: list[Tensor] = []
    given: list[Tensor] = []

    def record(block: nn.Module) -> None:
        forward = block.forward

        def run(*arguments: Any, **keywords: Any) -> Any:
            read.append(arguments[0] if arguments else keywords["hidden_states"])
            output = forward(*arguments, **keywords)
            first = output[0] if isinstance(output, tuple) else output
            given.append(next(iter(first.values())) if isinstance(first, dict) else first)
            return output

        monkeypatch.setattr(block, "forward", run)  # hooks miss blocks whose network calls forward directly

    for block in blocks_of(network):
        record(block)
    ids = torch.tensor([[9, 8, 7, 6, 5, 4, 3, 2]])
    states = hidden_states(network, ids, torch.ones_like(ids))
    assert (len(states), len(read)) == (LAYERS + 1, LAYERS)
    ends = [] if family in NORMED else [given[-1]]
    for state, value in zip(states, [*read, *ends], strict=family not in NORMED):
        if value.shape == state.mT.shape:  # channels before tokens
            value = value.mT
        torch.testing.assert_close(value.reshape(state.shape), state)
