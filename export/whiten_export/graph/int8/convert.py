"""Convert a graph to int8: measure, rewrite, and compare with float32 on far texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.graph.attention import lower_attention, save_lowered
from whiten_export.graph.builder import save_graph, save_with_outputs
from whiten_export.graph.int8.measure import CalibrationTexts
from whiten_export.graph.int8.rewrite import Calibration, calibrate, quantize_int8
from whiten_export.graph.int8.rounding import ROWS, largest_pair
from whiten_export.graph.products import plain_products
from whiten_export.proof.probe_texts import probe_texts
from whiten_runtime.bundle.parity import Agreement, compare
from whiten_runtime.bundle.records import SHORT, QuantizationRecord
from whiten_runtime.inference.loading import open_engine
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter

_LENGTHS = (2, 3, 5, 8, 13, 21, 34, 55, 89, 144)
"""Numbers of tokens of texts whose ids are drawn evenly."""

_REPEATS = (2, 5, 10, 12, 12, 12, 12, 20, 30, 60)
"""Numbers of times that one token is repeated."""

_BARE = (1, 2, 3, 4, 5, 8, 13)
"""Numbers of tokens of texts without special tokens."""

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
    """Return the texts to calibrate a graph on: sentences, token ids that reach further, and texts to compare on."""
    rows = [tokenizer.cut(row) for row in tokenizer.tokenize(sentences) if row]
    wide = [*wide_texts(vocabulary, 0), *extreme_texts(model, vocabulary)]
    return CalibrationTexts(rows, wide, far_texts(tokenizer, vocabulary), bare_texts(vocabulary), pad_token_id)


def far_texts(tokenizer: Tokenizer, vocabulary: Vocabulary) -> list[list[int]]:
    """Return texts far from those of the calibration: other scripts, code, emoji, random and repeated tokens."""
    probes = tokenizer.tokenize(probe_texts(vocabulary.longest))
    return [*(tokenizer.cut(row) for row in probes if row), *wide_texts(vocabulary, 1, repeated=2)]


def bare_texts(vocabulary: Vocabulary) -> list[list[int]]:
    """Return texts of random tokens without special ones: where attention cannot rest, activations leave their ranges.

    They count where constant scales are chosen, but in no comparison: no int8 follows float32 on the worst of them.
    """
    generator = np.random.default_rng(2)
    lengths = [min(length, vocabulary.longest) for length in _BARE for _ in range(6)]
    return [generator.integers(0, vocabulary.size, length).tolist() for length in lengths]


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
            return sorted({*_first_largest(rows, 1), *_first_largest(rows, -1)})
    return []


def _first_largest(table: NDArray[np.float32], sign: int) -> list[int]:
    """Return the row of each channel whose standardised value, times `sign`, is the largest; the first of equals."""
    best, place = np.full(table.shape[1], -np.inf, np.float32), np.zeros(table.shape[1], np.intp)
    for start in range(0, len(table), ROWS):
        rows = table[start : start + ROWS]
        standard = rows - rows.mean(axis=1, keepdims=True)
        standard /= sign * np.maximum(rows.std(axis=1, keepdims=True), 1e-6)
        largest = standard.argmax(axis=0)
        values = standard[largest, np.arange(len(largest))]
        place = np.where(values > best, start + largest, place)
        best = np.maximum(best, values)
    return place.tolist()


_DECIMALS = 6
"""Decimals of the cosines that are recorded: further ones differ between processors and numbers of threads."""

_WORSE, _LEAST = 0.002, 0.99
"""Largest difference, of the worst cosine on far texts, from that with a scale for each token everywhere and weights
rounded to the nearest, and the worst cosine itself, below which a scale for each token is tried, and taken if it loses
less: the gate wants 0.98. all-mpnet-base-v2 has .9865 with 25 constant scales and .9890 without, all-MiniLM-L6-v2 .9949
with 14."""


def convert_to_int8(
    graph: ir.Model, texts: CalibrationTexts, folder: Path, options: SessionOptions, report: Reporter
) -> tuple[ir.Model, QuantizationRecord]:
    """Return the graph in int8, with constant scales where texts far from the calibration lose little by them."""
    path, lowered = folder / "float32.onnx", folder / "lowered.onnx"
    plain_products(graph)
    save_with_outputs(graph, list(graph.graph.outputs), path)
    save_lowered(graph, [str(value.name) for value in graph.graph.outputs], lowered)
    exact = _vectors(lowered, texts.far, texts.pad_token_id, options)

    def converted(calibration: Calibration) -> tuple[ir.Model, Agreement]:
        model, trial = ir.load(path), folder / "int8" / path.name
        quantize_int8(model, calibration.chosen)
        runnable = model.clone()
        lower_attention(runnable, SHORT)
        save_graph(runnable, trial)
        return model, compare(_vectors(trial, texts.far, texts.pad_token_id, options), exact)

    calibration = calibrate(ir.load(path), texts, options, folder, report)
    plain = converted(calibration.plain)[1]
    model, agreement = converted(calibration)
    if calibration.constants and agreement.min_cosine < max(plain.min_cosine - _WORSE, _LEAST):
        report.stage("constant scales lose much on unusual texts; trying one for each token")
        tokens = calibration.without_constants(ir.load(path))
        token_model, token_agreement = converted(tokens)
        if round(token_agreement.min_cosine - agreement.min_cosine, _DECIMALS) > 0:
            calibration, model, agreement = tokens, token_model, token_agreement
    return model, _record(model, calibration, agreement, plain)


def _vectors(
    path: Path, ids: Sequence[Sequence[int]], pad_token_id: int, options: SessionOptions
) -> NDArray[np.float32]:
    engine = open_engine(path, pad_token_id, options)
    try:
        return engine.run(ids)
    finally:
        engine.close()


def _record(model: ir.Model, calibration: Calibration, agreement: Agreement, plain: Agreement) -> QuantizationRecord:
    products = [node.inputs[1] for node in model.graph if node.op_type == "MatMulInteger"]
    weights = [value.const_value.numpy() for value in products if value is not None and value.const_value is not None]
    return QuantizationRecord(
        constant_scales=len(calibration.constants),
        token_scales=len(calibration.chosen) - len(calibration.constants),
        far_min_cosine=round(agreement.min_cosine, _DECIMALS),
        far_mean_cosine=round(agreement.mean_cosine, _DECIMALS),
        token_min_cosine=round(plain.min_cosine, _DECIMALS),
        largest_pair=max(map(largest_pair, weights), default=0),
    )
