"""Provide token ids that reach further than sentences do: for ranges, and for the comparison of int8 with float32."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from whiten_export.graph.int8.ranges import CalibrationTexts
from whiten_export.proof.probe_texts import probe_texts
from whiten_runtime.inference.tokenizer import Tokenizer

_LENGTHS = (2, 3, 5, 8, 13, 21, 34, 55, 89, 144)
"""Numbers of tokens of texts whose ids are drawn evenly."""

_REPEATS = (2, 5, 10, 12, 12, 12, 12, 20, 30, 60)
"""Numbers of times that one token is repeated."""

_EXTREMES = 2048
"""Maximum number of tokens with extreme embeddings."""


@dataclass(frozen=True)
class Vocabulary:
    """Describes the token ids of a model."""

    size: int  # number of token ids
    prefix: Sequence[int]  # ids that begin every text
    suffix: Sequence[int]  # ids that end every text
    longest: int  # maximum number of tokens of a text

    @classmethod
    def of(cls, tokenizer: Tokenizer, size: int, longest: int) -> "Vocabulary":
        """Return the vocabulary of a tokenizer, with at most `longest` tokens in a text."""
        before, after = tokenizer.special_tokens
        ids = tokenizer.tokenize(["a"])[0]
        return cls(size, ids[:before], ids[len(ids) - after :], min(longest, tokenizer.max_seq_length))

    def text(self, ids: Sequence[int]) -> list[int]:
        """Return a text of these ids, between the special tokens, truncated."""
        room = max(self.longest - len(self.prefix) - len(self.suffix), 1)
        return [*self.prefix, *ids[:room], *self.suffix]


def calibration_texts(
    model: ir.Model, tokenizer: Tokenizer, sentences: Sequence[str], vocabulary: Vocabulary, pad_token_id: int
) -> CalibrationTexts:
    """Return the texts to calibrate a graph on: sentences, and token ids that reach further."""
    rows = [tokenizer.cut(row) for row in tokenizer.tokenize(sentences)]
    return CalibrationTexts(rows, [*wide_texts(vocabulary, 0), *extreme_texts(model, vocabulary)], pad_token_id)


def far_texts(tokenizer: Tokenizer, vocabulary: Vocabulary) -> list[list[int]]:
    """Return texts far from those of the calibration: other scripts, code, emoji, random and repeated tokens."""
    probes = tokenizer.tokenize(probe_texts(vocabulary.longest))
    return [*(tokenizer.cut(row) for row in probes), *wide_texts(vocabulary, 1, repeated=2)]


def wide_texts(vocabulary: Vocabulary, seed: int, repeated: int = 10) -> list[list[int]]:
    """Return texts of one token, of ids drawn evenly, up to the maximum length, and of one token many times."""
    generator = np.random.default_rng(seed)

    def drawn(count: int) -> list[int]:
        return [int(number) for number in generator.integers(0, vocabulary.size, count)]

    texts = [drawn(1) for _ in range(48)]
    texts += [drawn(length) for length in (*_LENGTHS, vocabulary.longest) for _ in range(2)]
    texts += [drawn(1) * times for times in _REPEATS for _ in range(repeated)]
    return [vocabulary.text(ids) for ids in texts]


def extreme_texts(model: ir.Model, vocabulary: Vocabulary) -> list[list[int]]:
    """Return texts of the tokens whose standardised word embeddings are the largest or smallest of a channel."""
    generator = np.random.default_rng(0)
    ids = generator.permutation(_extreme_ids(model))[:_EXTREMES].tolist()
    return [vocabulary.text(ids[start : start + 32]) for start in range(0, len(ids), 32)]


def _extreme_ids(model: ir.Model) -> list[int]:
    for node in model.graph:
        table, ids = (node.inputs[0], node.inputs[1]) if node.op_type == "Gather" else (None, None)
        if table is None or ids is None or ids.name != "input_ids" or table.const_value is None:
            continue
        rows = table.const_value.numpy()
        if rows.ndim == 2:
            standard = rows - rows.mean(axis=1, keepdims=True)
            standard /= np.maximum(rows.std(axis=1, keepdims=True), 1e-6)
            return sorted({*standard.argmax(axis=0).tolist(), *standard.argmin(axis=0).tolist()})
    return []
