"""Convert a graph to int8: narrow masks, measure, rewrite, and compare with float32 on far texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.builder import constant, save_graph, save_with_outputs
from whiten_export.graph.fold_positions import PartialRun
from whiten_export.graph.int8.rewrite import Calibration, calibrate, quantize_int8
from whiten_export.graph.int8.rounding import largest_pair
from whiten_export.graph.int8.scales import CalibrationTexts
from whiten_export.graph.products import plain_products
from whiten_export.proof.probe_texts import probe_texts
from whiten_runtime.bundle.parity import Agreement, compare
from whiten_runtime.bundle.records import QuantizationRecord
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
            standard = rows - rows.mean(axis=1, keepdims=True)
            standard /= np.maximum(rows.std(axis=1, keepdims=True), 1e-6)
            return sorted({*standard.argmax(axis=0).tolist(), *standard.argmin(axis=0).tolist()})
    return []


_MOST = 1 << 16
"""Maximum number of weights that a mask may depend on: one with more is a table of relative positions."""

_MASK_LENGTHS = ((5, 3, 1), (7, 7), (1,), (2, 9))
"""Lengths of the texts in each batch on which masks are compared, besides the longest: a window shows only there."""

_LONGEST = 4096
"""Maximum number of tokens of a text up to which masks are narrowed: a whole mask of more takes over 64 MB."""


def narrow_masks(model: ir.Model, longest: int) -> int:
    """Compute masks that are added to attention scores as [batch, 1, 1, sequence], where the result is the same."""
    if longest > _LONGEST:
        return 0
    replaced = 0
    for mask in _masks(model):
        levels = _levels(model, mask, longest)
        if levels is not None:
            _replace(model, mask, *levels)
            replaced += 1
    RemoveUnusedNodesPass()(model)
    return replaced


def _masks(model: ir.Model) -> list[ir.Value]:
    """Return the values that are added to the input of a Softmax and depend on neither weights nor activations."""
    found: dict[ir.Value, None] = {}
    for node in model.graph:
        scores = node.inputs[0].producer() if node.op_type == "Softmax" and node.inputs[0] is not None else None
        if scores is not None and scores.op_type == "Add":
            found |= {value: None for value in scores.inputs if value is not None and value.producer() is not None}
    return list(found)


def _levels(model: ir.Model, mask: ir.Value, longest: int) -> tuple[np.float32, np.float32] | None:
    """Return what a mask adds for a token and for padding; None if it differs between queries."""
    if mask.dtype not in (None, ir.DataType.FLOAT) or _reads_ids(mask):
        return None
    part = PartialRun(model, mask, _MOST)
    if not part.allowed:
        return None
    levels: dict[bool, set[np.float32]] = {True: set(), False: set()}
    for lengths in (*_MASK_LENGTHS, (longest, longest // 2)):
        counts = np.minimum(lengths, longest)
        tokens = (np.arange(counts.max()) < counts[:, None]).astype(np.int64)
        found = part({"input_ids": np.random.default_rng(0).integers(5, 50, tokens.shape), "attention_mask": tokens})
        if found.dtype != np.float32 or found.ndim != 4 or found.shape[:2] != (len(counts), 1):
            return None
        if found.shape[3] != tokens.shape[1]:
            return None
        for kept in levels:
            rows = np.broadcast_to(tokens[:, None, None] == kept, found.shape)
            levels[kept] |= set(np.unique(found[rows]))
    (token, *more), (padding, *others) = sorted(levels[True]), sorted(levels[False])
    return (token, padding) if not more and not others and padding < token else None


def _reads_ids(mask: ir.Value) -> bool:
    """Return whether a mask depends on token ids, not only on their number: padding may be known by its id."""
    known, open_ = set(), [mask.producer()]
    while open_:
        node = open_.pop()
        if node is None or node in known or node.op_type == "Shape":
            continue
        known.add(node)
        if any(value is not None and value.is_graph_input() and value.name == "input_ids" for value in node.inputs):
            return True
        open_ += [value.producer() for value in node.inputs if value is not None]
    return False


def _replace(model: ir.Model, mask: ir.Value, token: np.float32, padding: np.float32) -> None:
    tape = Tape()
    given = next(value for value in model.graph.inputs if value.name == "attention_mask")
    axes = constant(model.graph, "narrow_mask.axes", np.array([1, 2], np.int64))
    kept = tape.op("Unsqueeze", [tape.op("Cast", [given], {"to": ir.DataType.BOOL.value}), axes])
    added = [_level(model, value) for value in (token, padding)]
    row = tape.op("Where", [kept, *added])
    producer = mask.producer()
    assert producer is not None
    model.graph.insert_before(producer, tape.nodes)
    row.type = ir.TensorType(ir.DataType.FLOAT)
    ir.convenience.replace_all_uses_with(mask, row)


def _level(model: ir.Model, value: np.float32) -> ir.Value:
    array: NDArray[np.float32] = np.asarray(value, np.float32)
    return constant(model.graph, f"narrow_mask.{float(value)!r}", array)


_DECIMALS = 6
"""Decimals of the cosines that are recorded: further ones differ between processors and numbers of threads."""

_WORSE, _LEAST = 0.002, 0.99
"""Largest difference, of the worst cosine on far texts, from that with a scale for each token everywhere and weights
rounded to the nearest, and the worst cosine itself, below which a scale for each token is tried, and taken if it loses
less: the gate wants 0.98. all-mpnet-base-v2 has .9865 with 25 constant scales and .9890 without, all-MiniLM-L6-v2 .9949
with 14."""


def convert_to_int8(
    graph: ir.Model, texts: CalibrationTexts, longest: int, folder: Path, options: SessionOptions, report: Reporter
) -> tuple[ir.Model, QuantizationRecord]:
    """Return the graph in int8, with constant scales where texts far from the calibration lose little by them."""
    path = folder / "float32.onnx"
    plain_products(graph)
    save_with_outputs(graph, list(graph.graph.outputs), path)
    exact = _vectors(path, texts.far, texts.pad_token_id, options)
    narrow_masks(graph, longest)
    save_with_outputs(graph, list(graph.graph.outputs), path)

    def converted(calibration: Calibration) -> tuple[ir.Model, Agreement]:
        model, trial = ir.load(path), folder / "int8" / path.name
        quantize_int8(model, calibration.chosen)
        save_graph(model, trial)
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
