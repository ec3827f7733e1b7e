"""What an export needs of a model, whatever it was made with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers import Tokenizer

from whiten_export.graph.builder import HiddenStates
from whiten_export.proof.reference import Reference
from whiten_runtime.bundle.manifest import Pooling, Source

UNSET_LENGTH = 1_000_000
"""transformers writes a number far above this where a tokenizer has no limit."""


@dataclass(frozen=True)
class SourceTokenizer:
    """A checkpoint's tokenizer.

    Attributes:
        json: the same in the format of Hugging Face tokenizers.
        own_ids: the ids that the checkpoint's own tokenizer gives, cut to a number of tokens.
        pad_token_id: what pads a batch.
        specials: names of special tokens, such as "pad_token", and the tokens.
        stated_length: tokens that a text may have, where the checkpoint says so.
        surplus_from: ids from here on stand for the unknown token: pieces that the format must tell apart and the
            checkpoint does not. None where there are none.
        unknown_token_id: the id they stand for.
    """

    json: str
    own_ids: Callable[[Sequence[str], int], list[list[int]]]
    pad_token_id: int
    specials: Mapping[str, str]
    stated_length: int | None
    surplus_from: int | None = None
    unknown_token_id: int = 0

    def plain(self, ids: Sequence[int]) -> list[int]:
        """The ids as the checkpoint's own tokenizer gives them."""
        if self.surplus_from is None:
            return list(ids)
        return [number if number < self.surplus_from else self.unknown_token_id for number in ids]

    @property
    def special_tokens(self) -> int:
        """How many special tokens a text gets."""
        return int(Tokenizer.from_str(self.json).num_special_tokens_to_add(False))


class TokenModel(Protocol):
    """A model from token ids to hidden states.

    Attributes:
        record: what the manifest says of it.
        tokenizer: its tokenizer.
        layers: the hidden states that it has, ascending.
        default_layers: those to average where nobody chose.
        positions: tokens that it has positions for; None for any number.
        vocab_size: token ids that it knows.
        client_config: `config.json` for other programs.
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
        """The graph that gives these layers, without what they do not need.

        Raises:
            WhitenError: it cannot be made.
        """

    def reference(self, layers: tuple[int, ...], pooling: Pooling, single_precision: bool = False) -> Reference:
        """What the graph is checked against.

        Args:
            layers: indices into the hidden states.
            pooling: of the tokens.
            single_precision: compute in float32 as the graph does, to see what that alone costs.
        """
