"""Prove that the longest texts have the reference's vectors: one of the full length, and one of half of it.

Their reference is computed in float32, with PyTorch's fused attention where a network has it: in float64, scores of
8,192 tokens take 6 GB in each layer of a network of base size.
"""

from whiten_export.proof.probe_texts import LONGEST_PROBE

_WORDS = (
    "harbour",
    "copper",
    "autumn",
    "ladder",
    "signal",
    "meadow",
    "ticket",
    "thunder",
    "pencil",
    "orchard",
    "wheel",
)


def long_texts(max_seq_length: int) -> tuple[str, ...]:
    """Return a text that is cut at the maximum length and one of at least half of it; none if all probes are as long.

    Each word is one token or more.
    """
    if max_seq_length <= LONGEST_PROBE:
        return ()
    return tuple(_text(words, first) for words, first in ((max_seq_length + 8, 0), (max_seq_length // 2, 5)))


def _text(words: int, first: int) -> str:
    """Return a text whose words do not repeat after a fixed number of them."""
    return " ".join(_WORDS[(first + 3 * index + index // 11 + index // 97) % 11] for index in range(words))
