"""Check that a network's hidden states are what its blocks compute, by watching the blocks while it runs."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from whiten_runtime.errors import WhitenError

_PROBES = ([5, 6, 7, 8, 9], [7, 5], [9, 8, 7, 6, 5, 4, 3, 2])
"""Token ids of the texts that blocks are watched with; every vocabulary has them."""

_EPSILONS = (1e-12, 1e-8, 1e-6, 1e-5)
"""Numbers that norms add to the variance, as networks have them."""

_TOLERATED = 1e-5
"""Largest difference, relative to the largest coordinate, between a block's output and a hidden state."""


def check_count(states: Sequence[Tensor], num_hidden_layers: int, model_type: str) -> None:
    """Check that there is one hidden state for the embeddings and one for each block.

    Raises:
        WhitenError: the number differs, so that layer numbers would mean something else than the config says.
    """
    if len(states) != num_hidden_layers + 1:
        raise WhitenError(
            f"this {model_type} network gives {len(states)} hidden states for the {num_hidden_layers} layers of its "
            f"config; wanted {num_hidden_layers + 1}: a layer's number would not be that of the config"
        )


def check_blocks(
    network: nn.Module, states_of: Callable[[Tensor, Tensor], Sequence[Tensor]], num_hidden_layers: int, model_type: str
) -> int:
    """Check hidden states against what goes into the network's blocks and comes out of them.

    Hidden state l is what block l + 1 reads; the last hidden state is what the last block gives, or a norm of it.
    Networks whose blocks cannot be found, or never run, are not checked.

    Args:
        network: the network.
        states_of: function that returns the hidden states for token ids and a mask, int64 [1, sequence_length].
        num_hidden_layers: number of blocks.
        model_type: name of the architecture, for messages.

    Returns:
        Number of blocks that were watched; 0 where none can be.

    Raises:
        WhitenError: a hidden state is not what its block reads or gives.
    """
    blocks = _blocks(network, num_hidden_layers)
    if blocks is None:
        return 0
    seen: list[Tensor] = []
    given: list[Tensor] = []
    device = next(network.parameters()).device
    with _watching(blocks, seen, given):
        for ids in _PROBES:
            seen.clear()
            given.clear()
            row = torch.tensor([ids], device=device)
            states = states_of(row, torch.ones_like(row))
            if not seen:
                return 0
            _compare(states, seen, given, model_type)
    return len(blocks)


@contextmanager
def _watching(blocks: Sequence[nn.Module], seen: list[Tensor], given: list[Tensor]) -> Iterator[None]:
    """Record what each block reads and what the last one gives.

    The blocks' `forward` is replaced meanwhile, because PyTorch's hooks miss blocks whose network calls it directly, as
    SqueezeBERT's does.
    """
    before = [vars(block).get("forward") for block in blocks]
    for block in blocks:
        block.forward = _recording(block.forward, seen, given if block is blocks[-1] else None)
    try:
        yield
    finally:
        for block, forward in zip(blocks, before, strict=True):
            if forward is None:
                del block.forward
            else:
                block.forward = forward


def _recording(forward: Callable[..., Any], seen: list[Tensor], given: list[Tensor] | None) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*arguments: Any, **keywords: Any) -> Any:
        read = arguments[0] if arguments else keywords.get("hidden_states")
        if isinstance(read, Tensor):
            seen.append(read.detach())
        output = forward(*arguments, **keywords)
        value = output[0] if isinstance(output, tuple) else output
        if isinstance(value, dict):
            value = next(iter(value.values()), None)
        if given is not None and isinstance(value, Tensor):
            given.append(value.detach())
        return output

    return run


def _compare(states: Sequence[Tensor], seen: Sequence[Tensor], given: Sequence[Tensor], model_type: str) -> None:
    if len(seen) != len(states) - 1:
        raise WhitenError(
            f"this {model_type} network runs {len(seen)} blocks for {len(states)} hidden states; wanted one fewer"
        )
    for layer, (state, read) in enumerate(zip(states, seen, strict=False)):
        read = _as_rows(read, state)
        if state.shape != read.shape or not _close(state, read):
            raise WhitenError(f"hidden state {layer} of this {model_type} network is not what block {layer + 1} reads")
    last = states[-1]
    gave = _as_rows(given[-1], last) if given else last
    if gave.shape == last.shape and not _close(last, gave) and not _normed(last, gave):
        raise WhitenError(f"the last hidden state of this {model_type} network is not what its last block gives")


def _as_rows(value: Tensor, state: Tensor) -> Tensor:
    """Return a block's input or output with a row for each token: SqueezeBERT's blocks, convolutions, have columns."""
    if value.shape != state.shape and value.ndim == 3 and value.transpose(1, 2).shape == state.shape:
        return value.transpose(1, 2)
    return value


def _close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= _TOLERATED * max(1.0, float(other.abs().max())))


def _normed(state: Tensor, given: Tensor) -> bool:
    """Return whether a state may be a norm of what a block gives: a scale and a shift of each coordinate of its rows.

    The rows are brought to root mean square 1 in both ways that norms do, centred or not; every coordinate of the state
    must then be the same affine function of them in all tokens.
    """
    if state.shape[1] < 3:
        return True
    for rows in (given - given.mean(-1, keepdim=True), given):
        squares = rows.square().mean(-1, keepdim=True)
        for epsilon in _EPSILONS:
            unit = rows / (squares + epsilon).sqrt()
            x, y = unit[0] - unit[0].mean(0), state[0] - state[0].mean(0)
            slope = (x * y).sum(0) / x.square().sum(0).clamp_min(1e-12)
            if float((y - slope * x).abs().max()) <= 1e-3 * max(1e-3, float(state.abs().max())):
                return True
    return False


def _blocks(network: nn.Module, count: int) -> list[nn.Module] | None:
    """Return the blocks of a network in order: the only list of that many modules, none of which is inside another."""
    found = [
        module
        for module in network.modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and len({type(block) for block in module}) == 1
    ]
    if len(found) == 1:
        return list(found[0])
    return None
