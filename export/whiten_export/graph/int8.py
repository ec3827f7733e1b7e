"""Convert a graph to int8: calibrate it, rewrite it, and compare it with float32 on far texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.attention import attentions, lower_attention, query_product, save_lowered, value_product
from whiten_export.graph.build import (
    activations,
    bias_of,
    constant,
    is_linear,
    plain_products,
    save_graph,
    save_with_outputs,
    shares_weights,
    weights_by_result,
    weights_of,
    width_of,
)
from whiten_export.graph.int8_rounding import (
    ROWS,
    Columns,
    largest_pair,
    quantize_columns,
    quantize_weights,
    quantize_with_feedback,
)
from whiten_export.graph.int8_scales import (
    LEVELS,
    SYMMETRIC,
    CalibrationTexts,
    Choice,
    Float32Array,
    Scale,
    choose_constants,
    choose_scales,
    measure_ranges,
)
from whiten_export.proof.probe_texts import probe_texts
from whiten_runtime.bundle.manifest import SHORT, QuantizationRecord
from whiten_runtime.bundle.parity import Agreement, compare
from whiten_runtime.inference.loading import open_engine
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter


@dataclass(frozen=True)
class Quantized:
    """Holds what int8 needs to know of an activation."""

    scale: Scale  # how it becomes uint8
    # weights of its products, by the name of the product's result; those that are missing are rounded to the
    # nearest
    columns: Mapping[str, Columns] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibration:
    """Holds the scales of every activation of a graph, and the weights rounded for those that were chosen."""

    choices: Mapping[str, Choice]  # scales by the name of the activation
    chosen: Mapping[str, Quantized]  # scales and weights by the name of the activation
    grams: Mapping[str, Path]  # files of the Gram matrices of activations that may have a constant scale

    @property
    def constants(self) -> list[str]:
        """Return the names of the activations with a constant scale."""
        return [name for name, quantized in self.chosen.items() if quantized.scale.constant is not None]

    @property
    def plain(self) -> "Calibration":
        """Return a scale per token for every activation, and weights rounded to the nearest."""
        return replace(self, chosen={name: Quantized(choice.nearest) for name, choice in self.choices.items()})

    def without_constants(self, model: ir.Model) -> "Calibration":
        """Return scales per token for every activation; only weights of those with a constant one are rounded again."""
        names = self.constants
        rounded = {
            str(value.name): _quantized(
                value, self.choices[str(value.name)].token, np.load(self.grams[str(value.name)])
            )
            for value in activations(model)
            if value.name in names
        }
        return replace(self, chosen={**self.chosen, **rounded})


def calibrate(
    model: ir.Model, texts: CalibrationTexts, options: SessionOptions, folder: Path, report: Reporter
) -> Calibration:
    """Measure every activation of a graph once, choose its scale, and round its weights once, for that scale.

    Gram matrices that are needed again wait in files: those of a large network do not fit in memory together.
    """
    values = activations(model)
    choices: dict[str, Choice] = {}
    chosen: dict[str, Quantized] = {}
    grams: dict[str, Path] = {}
    with report.bar("products", 2 * len(values)) as advance:
        for value, measured in measure_ranges(model, values, texts, options, folder, report):
            name, producer = str(value.name), value.producer()
            weights = list(weights_by_result(value).values())
            function = producer.op_type if producer else None
            choices[name] = choose_scales(measured, weights, function, not shares_weights(value))
            if choices[name].constant is None:
                chosen[name] = _quantized(value, choices[name].token, measured.gram)
                advance(1)
            else:
                grams[name] = folder / f"gram.{len(grams)}.npy"
                np.save(grams[name], measured.gram)
            advance(1)
        constants = choose_constants(choices)
        for value in values:
            if (name := str(value.name)) in grams:
                scale = choices[name].constant if name in constants else None
                chosen[name] = _quantized(value, scale or choices[name].token, np.load(grams[name]))
                advance(1)
    return Calibration(choices, chosen, grams)


def _quantized(value: ir.Value, scale: Scale, gram: Float32Array) -> Quantized:
    """Return the scale of an activation, and the rounded weights of its products."""
    if shares_weights(value):
        return Quantized(scale)
    weights = weights_by_result(value)
    smoothed = scale.smoothed_weight(np.concatenate(list(weights.values()), axis=1))
    levels, steps = quantize_with_feedback(smoothed, scale.smoothed_gram(gram))
    ends = np.cumsum([weight.shape[1] for weight in weights.values()])[:-1]
    columns = map(np.ascontiguousarray, np.split(levels, ends, axis=1))
    return Quantized(scale, dict(zip(weights, zip(columns, np.split(steps, ends), strict=True), strict=True)))


def quantize_int8(model: ir.Model, quantized: Mapping[str, Quantized]) -> int:
    """Turn every MatMul with constant weights, and the table of the vocabulary, into int8.

    The whitening stays float32, and so do tables of positions: their rows are added to every text's.
    """
    rewriter = _Rewriter(model, quantized)
    rewriter.fold()
    replaced = 0
    for node in list(model.graph):
        if is_linear(node):
            rewriter.matmul(node)
        elif _looks_up_tokens(node) and (table := weights_of(node.inputs[0])) is not None and table.ndim == 2:
            rewriter.lookup(node, table)
        else:
            continue
        replaced += 1
    RemoveUnusedNodesPass()(model)
    return replaced


def _looks_up_tokens(node: ir.Node) -> bool:
    return node.op_type == "Gather" and node.inputs[1] is not None and node.inputs[1].name == "input_ids"


@dataclass(frozen=True)
class _Rows:
    levels: ir.Value  # uint8, of the activation's shape, or [tokens, n] if there are scales per token
    scale: float  # constant scale of all tokens, or 1
    of_tokens: ir.Value | None = None  # scales [tokens, 1]; None if the scale is constant
    # shape of the activation except its last dimension, and -1; None if the scale is constant
    shape: ir.Value | None = None


@dataclass
class _Rewriter:
    model: ir.Model
    quantized: Mapping[str, Quantized]
    """Scales and weights by the name of the activation: a lookup that is replaced is another value of the same name."""
    results: dict[ir.Node, Float32Array] = field(default_factory=dict)
    """Factors by which the columns of a product and its bias are multiplied."""
    folded: set[str] = field(default_factory=set)
    """Activations that are already divided by their factors."""
    rows: dict[str, _Rows] = field(default_factory=dict)
    unity: ir.Value = field(init=False)

    def __post_init__(self) -> None:
        """Compute a 1 whose value is known only when the graph runs.

        onnxruntime turns MatMulInteger, Cast and the product with (a scale of the left) * (scales of the right) into
        one kernel that scales while the sums are in registers, but folds the product first if both are constant.
        """
        tape = Tape()
        batch = tape.op("Shape", [self.model.graph.inputs[0]], {"start": 0, "end": 1})
        one = self._constant("one_or_less", np.ones(1, np.float32))
        self.unity = tape.op("Min", [tape.op("Cast", [batch], {"to": ir.DataType.FLOAT.value}), one])
        self.model.graph.insert_before(next(iter(self.model.graph)), tape.nodes)

    def fold(self) -> None:
        """Move factors of attention scores into the queries' weights, and those of a context into the values'."""
        for attention in attentions(self.model):
            if (product := query_product(attention)) is not None:
                self.results[product] = np.float32(attention.scale) * self._result_factors(product)
                attention.node.attributes["scale"] = ir.AttrFloat32("scale", 1.0)
        for context in activations(self.model):
            product, factors = value_product(context), self.quantized[str(context.name)].scale.factors
            if factors is not None and product is not None:
                self.results[product] = self._result_factors(product) / factors
                self.folded.add(str(context.name))

    def _result_factors(self, product: ir.Node) -> Float32Array:
        weight = weights_of(product.inputs[1])
        assert weight is not None
        return self.results.get(product, np.ones(weight.shape[1], np.float32))

    def matmul(self, node: ir.Node) -> None:
        source, result, weight = node.inputs[0], node.outputs[0], weights_of(node.inputs[1])
        assert source is not None
        assert weight is not None
        assert node.inputs[1] is not None
        tape = Tape()
        if source.name not in self.rows:
            self.rows[str(source.name)] = self._quantize(tape, source)
        rows, quantized = self.rows[str(source.name)], self.quantized[str(source.name)]
        known = quantized.columns.get(str(result.name))
        columns, column_scale = known or quantize_weights(quantized.scale.smoothed_weight(weight))
        name = f"{node.inputs[1].name}.{source.name}"
        held = name if known or quantized.scale.factors is not None else node.inputs[1].name  # for all users if plain
        column_scale = column_scale * np.float32(rows.scale)
        zero = self._level_of_zero(quantized.scale.zero_point)
        operands = [rows.levels, self._constant(f"{held}.int8", columns), zero]
        sums = tape.op("Cast", [tape.op("MatMulInteger", operands)], {"to": ir.DataType.FLOAT.value})
        if node in self.results:
            column_scale = column_scale * self.results[node]
            self._multiply_bias(node)
        per_column = self._constant(f"{name}.{result.name}.scale", column_scale)
        product = tape.op("Mul", [sums, tape.op("Mul", [self.unity, per_column])])
        if rows.of_tokens is not None and rows.shape is not None:
            product = tape.op("Reshape", [tape.op("Mul", [product, rows.of_tokens]), rows.shape])
        self._replace(node, tape, product, result)

    def _multiply_bias(self, product: ir.Node) -> None:
        node = bias_of(product)
        if node is None:
            return
        index = next(index for index, value in enumerate(node.inputs) if value is not None and value.is_initializer())
        bias = node.inputs[index]
        assert bias is not None
        assert bias.const_value is not None
        folded = bias.const_value.numpy() * self.results[product]
        node.replace_input_with(index, self._constant(f"{bias.name}.{product.outputs[0].name}", folded))

    def lookup(self, node: ir.Node, table: NDArray[np.float32]) -> None:
        """Replace a lookup; each row of the table has its own scale."""
        ids, result = node.inputs[1], node.outputs[0]
        tape = Tape()
        parts = [quantize_columns(part.T) for part in np.array_split(table, len(table) // ROWS + 1)]
        rows, scale = np.concatenate([levels.T for levels, _ in parts]), np.concatenate([steps for _, steps in parts])
        name = f"{node.inputs[0].name}" if node.inputs[0] is not None else ""
        picked = tape.op("Gather", [self._constant(f"{name}.int8", rows), ids])
        scales = tape.op("Gather", [self._constant(f"{name}.scale", scale[:, None]), ids])
        full = tape.op("Cast", [picked], {"to": ir.DataType.FLOAT.value})
        self._replace(node, tape, tape.op("Mul", [full, scales]), result)

    def _quantize(self, tape: Tape, source: ir.Value) -> _Rows:
        scale = self.quantized[str(source.name)].scale
        values = source
        if scale.factors is not None and source.name not in self.folded:
            values = tape.op("Mul", [source, self._constant(f"{source.name}.smoothing", 1 / scale.factors)])
        if scale.constant is None:
            return self._quantize_rows(tape, source, values, scale)
        step = self._constant(f"{source.name}.step", np.float32(scale.constant))
        return _Rows(tape.op("QuantizeLinear", [values, step, self._level_of_zero(scale.zero_point)]), scale.constant)

    def _quantize_rows(self, tape: Tape, source: ir.Value, values: ir.Value, scale: Scale) -> _Rows:
        """Quantise as [tokens, n], each row with its own scale: QuantizeLinear has none for the last axis."""
        width = self._constant(f"{source.name}.rows", np.array([-1, width_of(source)], np.int64))
        flat = tape.op("Reshape", [values, width])
        last = self._constant("last_axis", np.array([-1], np.int64))
        above = LEVELS - scale.zero_point
        measured = tape.op("Abs", [flat]) if scale.zero_point == SYMMETRIC else flat
        largest = tape.op("ReduceMax", [measured, last], {"keepdims": 0})
        bounded = tape.op("Max", [largest, self._constant(f"least.{scale.least!r}", np.float32(scale.least))])
        steps = tape.op("Mul", [bounded, self._constant(f"level.{scale.zero_point}", np.float32(1 / above))])
        zeros = tape.op("Expand", [self._level_of_zero(scale.zero_point), tape.op("Shape", [steps])])
        levels = tape.op("QuantizeLinear", [flat, steps, zeros], {"axis": 0})
        lead = tape.op("Shape", [source], {"start": 0, "end": -1})
        shape = tape.op("Concat", [lead, last], {"axis": 0})
        return _Rows(levels, 1.0, tape.op("Unsqueeze", [steps, last]), shape)

    def _level_of_zero(self, zero_point: int) -> ir.Value:
        return self._constant(f"zero_point.{zero_point}", np.uint8(zero_point))

    def _constant(self, name: str, array: NDArray[np.generic] | np.generic) -> ir.Value:
        return constant(self.model.graph, f"quantized.{name}", array)

    def _replace(self, node: ir.Node, tape: Tape, value: ir.Value, result: ir.Value) -> None:
        self.model.graph.insert_before(node, tape.nodes)
        value.type, value.shape = result.type, result.shape
        name = result.name
        ir.convenience.replace_all_uses_with(result, value)
        self.model.graph.remove(node, safe=True)
        value.name = name


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
        table = node.inputs[0] if _looks_up_tokens(node) else None
        if table is None or table.const_value is None:
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
    save_lowered(graph, graph.graph.outputs, lowered)
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
