"""Build a lookup graph of a StaticEmbedding of sentence-transformers, such as those of model2vec."""

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from whiten_export.graph.builder import HiddenStates
from whiten_export.graph.poolings import pool
from whiten_export.proof.gate import PublishedVectors, Request
from whiten_export.proof.reference import Float64Array, Reference
from whiten_export.sources.checkpoints.checkpoint import Checkpoint, source_record
from whiten_export.sources.networks.sentence_transformers import encode_published, load_table
from whiten_export.sources.opening import TokenModel
from whiten_export.sources.tokenizers import SourceTokenizer, read_backend
from whiten_export.sources.word_vectors import look_up, table_config
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.records import Pooling

_LENGTH = 1 << 20
"""Maximum number of tokens of a text where the tokenizer has none: sentence-transformers then takes any number."""


class StaticEmbedding(TokenModel):
    """Reads a table of token vectors and its tokenizer. No special tokens are added to a text."""

    def __init__(self, checkpoint: Checkpoint, device: str) -> None:
        self._checkpoint, self._device = checkpoint, device
        self.tokenizer = _tokenizer(checkpoint)
        self._table = load_table(checkpoint.directory)
        self.vocab_size = len(self._table)
        width = self._table.shape[1]
        self.record = source_record(checkpoint, "static", 0, width)
        self.client_config = table_config(self._table)

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Build a graph that looks up the vector of each token."""
        builder, state = look_up(self._table, "static")
        return HiddenStates(builder.close(state), (state,))

    def reference(self, layers: tuple[int, ...], pooling: Pooling) -> Reference:
        """Return the same computation on the arrays, in float64."""
        return StaticReference(self._table, pooling)

    def published(self, requests: Sequence[Request], max_seq_length: int) -> PublishedVectors | None:
        """Return the vectors of sentence-transformers."""
        return encode_published(self._checkpoint, requests, max_seq_length, False, self._device)


class StaticReference(Reference):
    """Pools vectors of tokens, in numpy and float64."""

    def __init__(self, table: NDArray[np.float32], pooling: Pooling) -> None:
        self._table, self._pooling = table, pooling
        self.name = f"numpy {np.__version__}, float64"

    def pooled(self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]) -> Float64Array:
        """Return the pooled vectors of the tokens, [1, batch_size, d]."""
        return pool([self._table[input_ids]], attention_mask, self._pooling)


def _tokenizer(checkpoint: Checkpoint) -> SourceTokenizer:
    path = checkpoint.directory / TOKENIZER_FILE
    own = read_backend(path)
    own.no_padding()
    own.no_truncation()
    content = json.loads(path.read_text("utf-8"))
    truncation = content.get("truncation")
    from_left = bool(truncation) and truncation.get("direction") == "Left"
    content["post_processor"] = None

    def own_ids(texts: Sequence[str], max_length: int) -> list[list[int]]:
        rows = [found.ids for found in own.encode_batch(list(texts), add_special_tokens=False)]
        return [row[max(0, len(row) - max_length) :] if from_left else row[:max_length] for row in rows]

    return SourceTokenizer(
        json=json.dumps(content, ensure_ascii=False),
        own_ids=own_ids,
        pad_token_id=0,
        specials={"pad_token": str(own.id_to_token(0))},
        stated_length=int(truncation["max_length"]) if truncation else _LENGTH,
        truncation_side="left" if from_left else "right",
    )
