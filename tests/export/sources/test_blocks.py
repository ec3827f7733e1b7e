"""Test that hidden states are compared with what the blocks of a network read and give."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
import transformers
from torch import Tensor, nn

from support.checkpoints import FAMILIES, random_network
from support.sizes import LAYERS
from whiten_export.sources.families import family_of
from whiten_export.sources.networks.blocks import check_blocks
from whiten_export.sources.networks.pytorch import _hidden_states as hidden_states
from whiten_runtime import WhitenError

NOT_FOUND = ("albert", "xlm")
"""ALBERT has one block, which runs several times; XLM has lists of parts of blocks."""

WATCHED = [name for name in FAMILIES if name not in NOT_FOUND]
States = Callable[[Tensor, Tensor], Sequence[Tensor]]


def network_of(family: str, **settings: object) -> nn.Module:
    """Make a small random network, without its tokenizer."""
    made = FAMILIES[family]
    ids = dict.fromkeys(made.ids, 1)
    config = transformers.AutoConfig.for_model(made.model_type, vocab_size=50, **(made.config | ids | settings))
    kind = family_of(made.model_type).model_class
    network = random_network(config, kind, noise=made.noise, small=made.small)
    network.set_attn_implementation("eager")
    return network.eval().double().requires_grad_(False)


def check(network: nn.Module, states_of: States | None = None, layers: int = LAYERS) -> int:
    kind = network.config.model_type  #
    return check_blocks(network, states_of or partial(hidden_states, network), layers, kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_hidden_states_of_every_family_are_those_of_its_blocks(family: str) -> None:
    assert check(network_of(family)) == (0 if family in NOT_FOUND else LAYERS)


@pytest.mark.parametrize("family", WATCHED)
def test_shifted_hidden_states_are_refused(family: str) -> None:
    network = network_of(family)

    def earlier(ids: Tensor, mask: Tensor) -> Sequence[Tensor]:
        states = hidden_states(network, ids, mask)
        return (states[0], *states[:-1])

    def later(ids: Tensor, mask: Tensor) -> Sequence[Tensor]:
        states = hidden_states(network, ids, mask)
        return (*states[1:], states[-1])

    kind = network.config.model_type  #
    with pytest.raises(WhitenError, match=f"^hidden state 1 of this {kind} network is not what block 2 reads$"):
        check(network, earlier)
    with pytest.raises(WhitenError, match="hidden state 0 of this .* network is not what block 1 reads"):
        check(network, later)


@pytest.mark.parametrize("family", WATCHED)
def test_another_last_hidden_state_is_refused(family: str) -> None:
    network = network_of(family)

    def mixed(ids: Tensor, mask: Tensor) -> Sequence[Tensor]:
        """Give the last state with the tokens in another order."""
        states = hidden_states(network, ids, mask)
        return (*states[:-1], states[-1].roll(1, dims=1))

    with pytest.raises(WhitenError, match="the last hidden state of this .* network is not what its last block gives"):
        check(network, mixed)


@pytest.mark.parametrize("change", [lambda states: states[1:], lambda states: (*states, states[-1])])
def test_too_few_or_too_many_hidden_states_are_refused(change: Callable[[Sequence[Tensor]], Sequence[Tensor]]) -> None:
    network = network_of("bert")
    with pytest.raises(WhitenError, match=f"runs {LAYERS} blocks for . hidden states; wanted one fewer"):
        check(network, lambda ids, mask: change(hidden_states(network, ids, mask)))


@pytest.mark.parametrize("family", ["bert", "squeezebert"])
def test_a_checked_network_is_left_as_it_was(family: str) -> None:
    network = network_of(family)
    hidden_states(network, torch.tensor([[5, 6]]), torch.tensor([[1, 1]]))  # transformers adds hooks of its own
    before = described(network)
    check(network)
    with pytest.raises(ZeroDivisionError):
        check(network, lambda ids, mask: 1 / 0)  # type: ignore[arg-type]
    assert described(network) == before


def described(network: nn.Module) -> dict[str, object]:
    """Return the names of the attributes of each module, and the numbers of its hooks."""
    return {
        name: (set(vars(module)), len(module._forward_hooks), len(module._forward_pre_hooks))
        for name, module in network.named_modules()
    }


def test_networks_with_several_lists_of_that_length_are_not_checked() -> None:
    network = nn.Module()
    network.first = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    network.second = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    assert check_blocks(network, lambda ids, mask: [], 2, "odd") == 0
    assert check_blocks(network, lambda ids, mask: [], 3, "odd") == 0


def test_two_layers_in_a_group_of_albert_are_refused() -> None:
    """transformers gives a hidden state for each layer of a group, though the config counts groups."""
    network = network_of("albert", inner_group_num=2)
    ids = torch.tensor([[5, 6, 7]])
    states = network(ids, output_hidden_states=True).hidden_states
    if len(states) == LAYERS + 1:
        pytest.skip(f"transformers {transformers.__version__} gives one for each group")
    with pytest.raises(WhitenError, match=f"albert network gives {len(states)} hidden states for the {LAYERS} layers"):
        hidden_states(network, ids, torch.ones_like(ids))


def test_probes_are_on_the_device_of_the_network() -> None:
    network = torch.nn.Sequential(torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))).to("meta")
    devices = []

    def states_of(ids: Tensor, mask: Tensor) -> list[Tensor]:
        devices.extend([ids.device.type, mask.device.type])
        return []

    assert check_blocks(network, states_of, 3, "small") == 0  # no block ran
    assert set(devices) == {"meta"}
