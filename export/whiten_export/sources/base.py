"""Define what an export needs of a model, whatever its format."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers import Tokenizer

from whiten_export.graph.builder import HiddenStates
from whiten_export.proof.gate import PublishedVectors, Request
from whiten_export.proof.reference import Reference
from whiten_runtime.bundle.records import Pooling, Side, Source

UNSET_LENGTH = 1_000_000
"""Length from which a tokenizer counts as unlimited: transformers then writes a far larger number."""


@dataclass(frozen=True)
class SourceTokenizer:
    """Describes a checkpoint's tokenizer."""

    json: str  # content of `tokenizer.json`, in the format of Hugging Face tokenizers
    # function that returns the ids of the checkpoint's own tokenizer, truncated to a number of tokens
    own_ids: Callable[[Sequence[str], int], list[list[int]]]
    pad_token_id: int  # id of the padding token
    specials: Mapping[str, str]  # special tokens by their role, such as "pad_token"
    stated_length: int | None  # maximum number of tokens of a text, where the checkpoint states it; otherwise None
    # first id that stands for the unknown token. Such ids belong to pieces that the format must distinguish and
    # the checkpoint does not. None where there are none
    surplus_from: int | None = None
    unknown_token_id: int = 0  # id of the unknown token
    truncation_side: Side = "right"  # side from which tokens are removed from texts that are too long

    def plain(self, ids: Sequence[int]) -> list[int]:
        """Return the ids as the checkpoint's own tokenizer gives them."""
        if self.surplus_from is None:
            return list(ids)
        return [number if number < self.surplus_from else self.unknown_token_id for number in ids]

    @property
    def special_tokens(self) -> int:
        """Return the number of special tokens that a text gets."""
        return int(Tokenizer.from_str(self.json).num_special_tokens_to_add(False))


class TokenModel(Protocol):
    """Computes hidden states from token ids."""

    record: Source  # description of the model, for the manifest
    tokenizer: SourceTokenizer  # tokenizer of the model
    layers: tuple[int, ...]  # indices of the available hidden states, ascending
    default_layers: tuple[int, ...]  # hidden states to average by default
    positions: int | None  # maximum number of tokens that it has positions for; None for any number
    vocab_size: int  # number of token ids
    client_config: Mapping[str, Any]  # content of `config.json` for other programs
    supported: bool  # whether its family is in the registry

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Return the graph that computes these layers, without nodes that they do not need."""

    def reference(self, layers: tuple[int, ...], pooling: Pooling) -> Reference:
        """Return the reference that the graph is checked against."""

    def published(self, requests: Sequence[Request], max_seq_length: int) -> PublishedVectors | None:
        """Return the vectors of the program that the model was published for; None if there is no such program."""
