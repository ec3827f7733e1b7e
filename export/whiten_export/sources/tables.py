"""Read tables of token vectors: a StaticEmbedding of sentence-transformers, or a folder of model2vec."""

import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from whiten_export.graph.build import HiddenStates, describe
from whiten_export.graph.ends import look_up, table_config
from whiten_export.proof.gate import Case, PublishedVectors
from whiten_export.proof.reference import Reference
from whiten_export.sources.checkpoint import NETWORK_WEIGHTS, Checkpoint, source_record
from whiten_export.sources.model import TableReference, TokenModel
from whiten_export.sources.network import explaining
from whiten_export.sources.sentence_transformers import encode_published, load_table
from whiten_export.sources.tokenizer import SourceTokenizer, missing_tokenizer, read_backend
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.errors import WhitenError
from whiten_runtime.inference.options import with_prompt

_WITHOUT_UNKNOWN = hashlib.sha256(b"unknown tokens are left out").hexdigest()
"""Identity of a table of token vectors whose unknown tokens are left out of the mean, as model2vec does."""

_LENGTH = 1 << 20
"""Maximum number of tokens of a text where the tokenizer has none: sentence-transformers then takes any number."""


class StaticEmbedding(TokenModel):
    """Reads a table of token vectors and its tokenizer. No special tokens are added to a text."""

    def __init__(self, checkpoint: Checkpoint, device: str) -> None:
        self.checkpoint, self._device = checkpoint, device
        self.tokenizer = _tokenizer(checkpoint)
        authors, alone = checkpoint.authors, _by_model2vec(checkpoint)
        self._table = (load_model2vec if alone else load_table)(checkpoint.directory)
        self.vocab_size = len(self._table)
        width = self._table.shape[1]
        network = _WITHOUT_UNKNOWN if alone else UNSET
        self.record = source_record(checkpoint, "static", 0, width, network_sha256=(network, UNSET))
        self.client_config = table_config(self._table)
        self._unknown = self.tokenizer.unknown_token_id if alone else None
        if alone and authors is not None and authors.max_length is not None:
            self.letters = int(np.median([len(token) for token in Tokenizer.from_str(self.tokenizer.json).get_vocab()]))

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Build a graph that looks up the vector of each token; the mean of model2vec is over the known ones."""
        builder, state = look_up(self._table, "static")
        if self._unknown is None or pooling != "mean":
            return HiddenStates(builder.close(state), (state,))
        ids, mask = builder.input("input_ids"), builder.input("attention_mask")
        unknown = builder.op("Equal", ids, builder.constant("static.unknown", np.int64(self._unknown)))
        counted = builder.float32(builder.op("And", builder.op("Not", unknown), builder.boolean(mask)))
        count = builder.op("ReduceSum", counted, builder.integers(1), keepdims=1)
        shares = builder.op("Div", counted, builder.op("Max", count, builder.scalar(1)))
        describe(shares, "token_shares", "batch_size", "sequence_length")
        return HiddenStates(builder.close(state, shares), (state,), shares)

    def reference(self, layers: tuple[int, ...], pooling: Pooling) -> Reference:
        """Return the same computation on the arrays, in float64."""
        if self._unknown is None or pooling != "mean":
            return TableReference(self._table, pooling)
        return TableReference(self._table, pooling, (np.arange(self.vocab_size) != self._unknown).astype(np.float64))

    def published(self, cases: Sequence[Case], max_seq_length: int | None) -> PublishedVectors | None:
        """Return the vectors of sentence-transformers; for files of model2vec alone, its own, where it is installed."""
        if self._unknown is not None:
            return encode_by_model2vec(self.checkpoint, cases, max_seq_length, self.letters)
        return encode_published(self.checkpoint, cases, max_seq_length, False, self._device)


def _by_model2vec(checkpoint: Checkpoint) -> bool:
    return checkpoint.authors is not None and checkpoint.authors.stated_by == "model2vec"


def load_model2vec(folder: Path) -> NDArray[np.float32]:
    """Load the table of a folder of model2vec, float32 [number of tokens, d].

    A token has the row that `mapping` gives, times its weight; rows may be int8 or float16.
    """
    file = folder / NETWORK_WEIGHTS[0]
    with explaining([file]):
        tensors = load_file(file)
    table = tensors["embeddings"].astype(np.float32)
    if "mapping" in tensors:
        table = table[tensors["mapping"]]
    if "weights" in tensors:
        table *= tensors["weights"].astype(np.float32)[:, None]
    if not np.isfinite(table).all():
        raise WhitenError(f"{file}: holds NaN or infinity; copy the model again, or use another checkpoint of it")
    return table


_MORE = " and other words that no vector may show"


def encode_by_model2vec(
    checkpoint: Checkpoint, cases: Sequence[Case], max_seq_length: int | None, letters: int | None
) -> PublishedVectors | None:
    """Embed texts with model2vec, each alone; None where it is not installed.

    Texts of as many letters as it reads get more of them, which it has to cut.
    """
    try:
        from model2vec import StaticModel
    except ImportError:
        return None
    model = StaticModel.from_pretrained(checkpoint.directory)
    model.embedding = model.embedding.astype(np.float32)  # it would add float16 in float16
    model.max_length = max_seq_length or model.max_length
    most = None if letters is None else letters * model.max_length
    texts = (with_prompt(case.prompt, case.texts) for case in cases)
    longer = ([text + _MORE if len(text) == most else text for text in part] for part in texts)
    vectors = tuple(model.encode(part).astype(np.float64) for part in longer)
    return PublishedVectors(f"model2vec {version('model2vec')}, float32", vectors)


def _tokenizer(checkpoint: Checkpoint) -> SourceTokenizer:
    path = checkpoint.directory / TOKENIZER_FILE
    if not path.is_file():
        raise missing_tokenizer(checkpoint)
    own = read_backend(path)
    own.no_padding()
    own.no_truncation()
    content = json.loads(path.read_text("utf-8"))
    # model2vec cuts texts by its config.json alone, and from the right
    truncation = None if _by_model2vec(checkpoint) else content.get("truncation")
    from_left = truncation is not None and truncation.get("direction") == "Left"
    content["post_processor"] = None

    def own_ids(texts: Sequence[str], max_length: int) -> list[list[int]]:
        rows = [encoding.ids for encoding in own.encode_batch(list(texts), add_special_tokens=False)]
        return [row[max(0, len(row) - max_length) :] if from_left else row[:max_length] for row in rows]

    unknown = getattr(own.model, "unk_token", None)
    if "unk_id" in content["model"]:  # Unigram names it by its place
        unknown = own.id_to_token(content["model"]["unk_id"])
    unknown_id = None if unknown is None else own.token_to_id(unknown)
    return SourceTokenizer(
        json=json.dumps(content, ensure_ascii=False),
        own_ids=own_ids,
        pad_token_id=0,
        specials={"pad_token": str(own.id_to_token(0))} | ({} if unknown is None else {"unk_token": unknown}),
        unknown_token_id=-1 if unknown_id is None else unknown_id,
        stated_length=int(truncation["max_length"]) if truncation else _LENGTH,
        truncation_side="left" if from_left else "right",
    )
