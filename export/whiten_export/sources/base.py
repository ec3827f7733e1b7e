"""Define what an export needs of a model, whatever its format."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers import Tokenizer

from whiten_export.graph.builder import HiddenStates
from whiten_export.proof.reference import Reference
from whiten_export.proof.requests import PublishedVectors, Request
from whiten_runtime.bundle.manifest import Pooling, Side, Source

UNSET_LENGTH = 1_000_000
"""Length from which a tokenizer counts as unlimited: transformers then writes a far larger number."""


@dataclass(frozen=True)
class SourceTokenizer:
    """Describes a checkpoint's tokenizer.

    Attributes:
        json: content of `tokenizer.json`, in the format of Hugging Face tokenizers.
        own_ids: function that returns the ids of the checkpoint's own tokenizer, truncated to a number of tokens.
        pad_token_id: id of the padding token.
        specials: special tokens by their role, such as "pad_token".
        stated_length: maximum number of tokens of a text, where the checkpoint states it; otherwise None.
        surplus_from: first id that stands for the unknown token. Such ids belong to pieces that the format must
            distinguish and the checkpoint does not. None where there are none.
        unknown_token_id: id of the unknown token.
        truncation_side: side from which tokens are removed from texts that are too long.
    """

    json: str
    own_ids: Callable[[Sequence[str], int], list[list[int]]]
    pad_token_id: int
    specials: Mapping[str, str]
    stated_length: int | None
    surplus_from: int | None = None
    unknown_token_id: int = 0
    truncation_side: Side = "right"

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
    """Computes hidden states from token ids.

    Attributes:
        record: description of the model, for the manifest.
        tokenizer: tokenizer of the model.
        layers: indices of the available hidden states, ascending.
        default_layers: hidden states to average by default.
        positions: maximum number of tokens that it has positions for; None for any number.
        vocab_size: number of token ids.
        client_config: content of `config.json` for other programs.
        supported: whether its family is in the registry.
    """

    record: Source
    tokenizer: SourceTokenizer
    layers: tuple[int, ...]
    default_layers: tuple[int, ...]
    positions: int | None
    vocab_size: int
    client_config: Mapping[str, Any]
    supported: bool

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Return the graph that computes these layers, without nodes that they do not need.

        Raises:
            WhitenError: the graph cannot be built.
        """

    def reference(self, layers: tuple[int, ...], pooling: Pooling, single_precision: bool = False) -> Reference:
        """Return the reference that the graph is checked against.

        Args:
            layers: indices into the hidden states.
            pooling: pooling over the tokens.
            single_precision: compute in float32 like the graph, to measure the error of float32 alone.
        """

    def published(self, requests: Sequence[Request], max_seq_length: int) -> PublishedVectors | None:
        """Return the vectors of the program that the model was published for; None if there is no such program.

        Args:
            requests: texts and prompts.
            max_seq_length: maximum number of tokens of a text.

        Raises:
            WhitenError: the program is missing or cannot load the model.
        """
