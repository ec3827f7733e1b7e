"""Define what every source of texts gives: hidden states, the reference they are checked against, a tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any

from whiten_export.graph.builder import HiddenStates
from whiten_export.proof.gate import PublishedVectors, Request
from whiten_export.proof.reference import Float64Array, Reference
from whiten_export.sources.describe.checkpoint import Checkpoint
from whiten_export.sources.describe.families import BatchLimit
from whiten_export.sources.describe.tokenizers import SourceTokenizer
from whiten_runtime.bundle.records import Pooling, Source


class TokenModel:
    """Computes hidden states from token ids. The defaults are those of a table of vectors, without a network."""

    checkpoint: Checkpoint  # files of the model, and how its authors make a vector of a text
    record: Source  # description of the model, for the manifest
    tokenizer: SourceTokenizer  # tokenizer of the model
    layers: tuple[int, ...] = (0,)  # indices of the available hidden states, ascending
    default_layers: tuple[int, ...] = (0,)  # hidden states to average by default
    positions: int | None = None  # maximum number of tokens that it has positions for; None for any number
    batch_limit: BatchLimit | None = None  # length from which a text changes the vectors of its batch, if any
    vocab_size: int  # number of token ids
    client_config: Mapping[str, Any]  # content of `config.json` for other programs
    supported: bool = True  # whether its family is in the registry
    own_outputs: tuple[str, ...] = ()  # outputs of its own graph that are one vector a text

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Return the graph that computes these layers, without nodes that they do not need."""
        raise NotImplementedError

    def reference(self, layers: tuple[int, ...], pooling: Pooling) -> Reference:
        """Return the reference that the graph is checked against."""
        raise NotImplementedError

    def own_vectors(self, output: str, rows: Sequence[Sequence[int]]) -> Float64Array:
        """Return the vectors [n, k] that its own graph gives in an output for n texts, by their token ids."""
        raise NotImplementedError

    def published(self, requests: Sequence[Request], max_seq_length: int) -> PublishedVectors | None:
        """Return the vectors of the program that the model was published for; None if there is no such program."""
        return None
