"""Test that the reference gives the numbers of a whole network in float64, with one block in float64 at a time."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support.checkpoints import family_network
from support.families import FAMILIES, LAYERS
from whiten_export.proof.reference import text_alone
from whiten_export.sources.load.torch_reference import TorchReference, hidden_states, keeps_nothing

EVERY = tuple(range(LAYERS + 1))
TEXTS = ([9, 8, 7, 6, 5], [4], [3, 3, 11, 12, 13, 14, 15, 16, 17], [7, 9])
WHOLE = ("albert", "deberta-v2")
"""Families that are converted as a whole: ALBERT has one block, and DeBERTa-v2 is not in the registry."""


def pooled_by(network: nn.Module, text: list[int]) -> np.ndarray:
    ids = torch.tensor([text])
    with torch.no_grad():
        states = hidden_states(network, ids, torch.ones_like(ids))
    return np.stack([state.numpy().mean(axis=1) for state in states])


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_a_whole_network_in_float64(family: str) -> None:
    network = family_network(family)
    whole = copy.deepcopy(network).double()
    reference = TorchReference(network, EVERY, "mean", known_code=True)
    for text in TEXTS:
        np.testing.assert_allclose(reference.pooled(*text_alone(text)), pooled_by(whole, text), rtol=0, atol=1e-14)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in WHOLE])
def test_one_block_at_a_time_is_in_float64(family: str) -> None:
    network = family_network(family)
    blocks = [part for module in network.modules() if isinstance(module, nn.ModuleList) for part in module]
    outer = [block for block in blocks if not any(block in other.modules() for other in blocks if other is not block)]
    wide: list[int] = []

    def record(module: Any, *_: object) -> None:
        wide.append(sum(next(block.parameters()).dtype == torch.float64 for block in outer))

    for block in outer:
        for part in list(block.modules())[1:]:
            part.register_forward_pre_hook(record)
    reference = TorchReference(network, EVERY, "mean", known_code=True)
    shares = keeps_nothing(network)
    with reference.side_by_side() as workers, ThreadPoolExecutor(workers) as executor:
        list(executor.map(lambda text: reference.pooled(*text_alone(text)), TEXTS * 3))
    assert workers > 1 or not shares
    assert set(wide) == {1}
    assert {next(block.parameters()).dtype for block in blocks} == {torch.float32}


def test_a_block_that_fails_lets_the_others_go_on() -> None:
    reference = TorchReference(family_network("bert"), EVERY, "mean", known_code=True)
    with pytest.raises(IndexError):
        reference.pooled(*text_alone([1000]))
    with pytest.raises((IndexError, RuntimeError)):
        reference.pooled(*text_alone([5] * 500))
    done = threading.Event()
    thread = threading.Thread(target=lambda: (reference.pooled(*text_alone([5, 6])), done.set()))
    thread.start()
    thread.join(60)
    assert done.is_set()


def test_long_texts_are_computed_in_float32() -> None:
    network = family_network("mpnet")
    narrow, whole = copy.deepcopy(network), copy.deepcopy(network).double()
    reference = TorchReference(network, EVERY, "mean", known_code=True)
    with reference.for_long_texts():
        found = reference.pooled(*text_alone(TEXTS[0]))
    np.testing.assert_allclose(found, pooled_by(narrow, TEXTS[0]), atol=1e-4)
    assert np.abs(found - pooled_by(whole, TEXTS[0])).max() > 1e-9
    np.testing.assert_allclose(reference.pooled(*text_alone(TEXTS[0])), pooled_by(whole, TEXTS[0]), atol=1e-14)
