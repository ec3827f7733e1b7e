"""Say in how many threads PyTorch computes, and whether several threads may use a network at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch
from torch import nn

from whiten_export.sources.families import family_of

_SAFE = find_spec("transformers.utils.output_capturing") is not None
"""Whether transformers collects hidden states for each thread apart; before version 5 it replaced blocks' methods."""

_REMEMBERING = ("dynamic", "longrope")
"""Kinds of rotary embeddings that keep frequencies for the longest text so far."""


@contextmanager
def one_thread() -> Iterator[int]:
    """Compute every operator in the thread that calls it; yield how many threads PyTorch used before.

    Two threads wait for each other at every operator. With all-MiniLM-L6-v2 in float64 and 49 short texts, two threads
    on two busy cores took 18 to 28 s, one took 4.3 s.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of threads that begin later, too
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def keeps_nothing(network: nn.Module) -> bool:
    """Return whether a network of a known architecture keeps nothing between calls, so that threads can share it."""
    kinds = (str(getattr(module, "rope_type", "")) for module in network.modules())
    known = family_of(str(getattr(getattr(network, "config", None), "model_type", ""))).supported
    return _SAFE and known and not any(kind in text for text in kinds for kind in _REMEMBERING)
