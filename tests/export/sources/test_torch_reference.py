"""Test that the reference gives the numbers of a network as transformers loads it: float32, with its own attention."""

import copy
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from support.checkpoints import family_network
from support.families import FAMILIES, LAYERS
from whiten_export.proof.reference import text_alone
from whiten_export.sources.pytorch import TorchReference, hidden_states

EVERY = tuple(range(LAYERS + 1))
TEXTS = ([9, 8, 7, 6, 5], [4], [3, 3, 11, 12, 13, 14, 15, 16, 17], [7, 9])


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_the_network_as_transformers_loads_it(family: str, tmp_path: Path) -> None:
    network = family_network(family)
    network.save_pretrained(tmp_path)
    # With the attention that it has by default. Products with one token may be rounded otherwise where weights are not
    # aligned, as those of a mapped file; a copy of them is.
    theirs = copy.deepcopy(type(network).from_pretrained(tmp_path).eval())
    wide = copy.deepcopy(network).double()
    reference = TorchReference(network, EVERY, "mean", known_code=True)
    assert network.config._attn_implementation == theirs.config._attn_implementation
    for text in TEXTS:
        got, ids = reference.pooled(*text_alone(text)), torch.tensor([text])
        for other, bound in ((theirs, 1e-15), (wide, 2e-6)):
            with torch.no_grad():
                states = hidden_states(other, ids, torch.ones_like(ids))
            want = np.stack([state.double().numpy().mean(axis=1) for state in states])
            assert np.abs(got - want).max() <= bound * np.abs(want).max()


def test_a_text_that_fails_lets_the_others_go_on() -> None:
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
