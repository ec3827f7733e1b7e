"""A bundle whose texts take as long to compute as they say, and so keep a lane busy; and one that fails."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from support.bundles import change_bundle, rewrite_file
from whiten_runtime.bundle.bundle import MODEL_FILE, TOKENIZER_FILE

SIZES = (256, 362, 512, 724, 1024, 1448, 2048, 4096)
"""Sizes of the square matrices that are multiplied with one another for a batch: of a processor of 2026, 512 takes a
sixth of a second, 1,024 a second or two, 4,096 two minutes."""

WORDS = tuple("abcdefghijklmnopqrstuvwxyz")
"""Words of one token each."""

SPECIAL = 2
"""Tokens of a text besides those of its words."""

_PRODUCTS = 64
_STEP = 10_000
"""Token ids from here on stand for sizes, of which each is its id divided by this number."""

_GRAPH = """
<ir_version: 10, opset_import: ["" : 20]> timed
(int64[batch_size, sequence_length] input_ids, int64[batch_size, sequence_length] attention_mask)
=> (float[batch_size, 32] sentence_embedding)
{
  largest = ReduceMax <keepdims = 0> (input_ids)
  quotient = Div (largest, step)
  size = Max (quotient, one)
  shape = Expand (size, two)
  width = Cast <to = 1> (size)
  number = Reciprocal (width)
  product0 = Expand (number, shape)
  PRODUCTS
  mean = ReduceMean <keepdims = 0> (productLAST)
  nothing = Mul (mean, zero)
  known = Min (input_ids, most)
  rows = Gather (table, known)
  is_token = Greater (attention_mask, none)
  weights = Cast <to = 1> (is_token)
  column = Unsqueeze (weights, last)
  weighted = Mul (rows, column)
  sums = ReduceSum <keepdims = 0> (weighted, second)
  counts = ReduceSum <keepdims = 0> (column, second)
  means = Div (sums, counts)
  sentence_embedding = Add (means, nothing)
}
"""
"""Means of rows of a table. The products of matrices of equal numbers, whose sums are one, are such matrices again."""


def write_timed_bundle(original: Path, path: Path, length: int = 8192, **fields: Any) -> None:
    """Write a bundle of means of random vectors, whose texts have up to `length` tokens.

    Args:
        original: the golden bundle in float32, whose tokenizer and manifest it gets.
        path: directory of the bundle.
        length: number of tokens of the longest text.
        fields: other fields of the manifest.
    """
    table = np.random.default_rng(0).normal(size=(1200, 32)).astype(np.float32)
    _write(original, path, table, most=len(table) - 1, max_seq_length=length, **fields)


def write_broken_bundle(original: Path, path: Path) -> None:
    """Write a bundle that opens, and then fails on every text: its table of vectors has a row for token 0 only."""
    _write(original, path, np.zeros((1, 32), np.float32), most=2**40, pad_token_id=5)


def _write(original: Path, path: Path, table: np.ndarray, most: int, **fields: Any) -> None:
    shutil.copytree(original, path)
    steps = [f"product{step} = MatMul (product{step - 1}, product{step - 1})" for step in range(1, _PRODUCTS + 1)]
    model = onnx.parser.parse_model(_GRAPH.replace("PRODUCTS", "\n".join(steps)).replace("LAST", str(_PRODUCTS)))
    arrays = {"table": table, "zero": np.float32(0), "step": _STEP, "one": 1, "none": 0, "most": most}
    arrays |= {"two": [2], "second": [1], "last": [2]}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items())
    rewrite_file(path, MODEL_FILE, model.SerializeToString())
    described = json.loads((path / TOKENIZER_FILE).read_text("utf-8"))
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    described["added_tokens"] += [{"id": _STEP * size, "content": slow(size)} | plain for size in SIZES]
    described["model"]["vocab"] |= {slow(size): _STEP * size for size in SIZES}
    rewrite_file(path, TOKENIZER_FILE, json.dumps(described).encode())
    change_bundle(path, **fields)


def slow(size: int) -> str:
    """Return a word that makes its text, and the batch that the text is in, take the time of a size."""
    return f"[{size}]"


def text_of(tokens: int, number: int = 0) -> str:
    """Return a text of so many tokens, another one for each number as far as its words allow it."""
    chosen = []
    for _ in range(tokens - SPECIAL):
        number, place = divmod(number, len(WORDS))
        chosen.append(WORDS[place])
    return " ".join(chosen)
