"""Choose the texts and prompts with which a model is compared with the program that it was published for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whiten_export.proof.modules import Float64Array

_PROMPTED = 6
"""Number of texts that are compared with each prompt."""

_MOST = 12
"""Number of prompts that are compared, the first ones; a prompt is text, and differs from others in nothing else."""


@dataclass(frozen=True)
class Request:
    """Holds texts to embed with one prompt."""

    prompt: str  # prompt that is put before each text, or around it; an empty string for none
    texts: tuple[str, ...]  # the texts


@dataclass(frozen=True)
class PublishedVectors:
    """Holds vectors that the program computed for which a model was published."""

    name: str  # name and version of the program
    vectors: tuple[Float64Array, ...]  # float64 [n, k] for each request


def prompted_requests(texts: Sequence[str], prompts: Mapping[str, str]) -> tuple[Request, ...]:
    """Return a few texts, short and long ones, with each prompt that is not empty."""
    step = max(1, len(texts) // (_PROMPTED - 1))
    some = tuple(dict.fromkeys((*texts[::step][: _PROMPTED - 1], texts[-1])))
    distinct = [prompt for prompt in dict.fromkeys(prompts.values()) if prompt]
    return tuple(Request(prompt, some) for prompt in distinct[:_MOST])
