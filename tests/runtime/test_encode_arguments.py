"""Test the arguments of `encode` that sentence-transformers has; tests/parity compares their results with it."""

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles import copy_bundle
from support.corpus import sentences
from support.families import WIDTH
from whiten import Encoder, MissingPackageError, TextError, UsageError

TEXTS = ["a text", "another text of some words", ""]
PRECISIONS = ["float32", "int8", "uint8", "binary", "ubinary"]
METHODS = ["encode", "encode_query", "encode_document"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"device": "cuda"}, "'cuda'.*'cpu'"),
        ({"device": ["cpu", "cpu"]}, "device"),
        ({"precision": "int4"}, "'int4'"),
        ({"precision": "int8", "ranges": [[0], [1]]}, r"\[2, 1\].*\[2, 32\]"),
        ({"ranges": [[0], [1]]}, "ranges"),
    ],
)
def test_what_cannot_be_done_is_one_line(tiny: Encoder, method: str, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        getattr(tiny, method)(TEXTS, **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", METHODS)
def test_no_precision_is_float32(tiny: Encoder, method: str) -> None:
    np.testing.assert_array_equal(getattr(tiny, method)(TEXTS, precision=None), tiny.encode(TEXTS))


def test_tensors_need_torch(tiny: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for arguments in ({"convert_to_tensor": True}, {"convert_to_numpy": False}):
        with pytest.raises(MissingPackageError, match="torch"):
            tiny.encode(TEXTS, **arguments)


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_pairwise_similarity_is_the_diagonal(golden: Path, tmp_path: Path, name: str) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path, similarity_fn_name=name)
    with Encoder(bundle) as encoder:
        assert encoder.similarity_fn_name == name
        a, b = encoder.encode(sentences(6)), encoder.encode(sentences(12)[6:])
        scores = encoder.similarity_pairwise(a, b)
        np.testing.assert_allclose(scores, np.diag(encoder.similarity(a, b)), rtol=1e-5, atol=1e-6)
        assert (scores.dtype, scores.shape) == (np.float32, (6,))
        assert encoder.similarity_pairwise(a[0], b[0]).shape == ()
        assert encoder.similarity_pairwise(a[:0], b[:0]).shape == (0,)
        np.testing.assert_allclose(encoder.similarity_pairwise(a[0], b[0]), scores[0], rtol=1e-5)
        with pytest.raises(UsageError, match="a holds 6 vectors and b 1; wanted as many, or call similarity"):
            encoder.similarity_pairwise(a, b[0])
        with pytest.raises(UsageError, match=r"a has shape \(1, 6, 32\)"):
            encoder.similarity_pairwise(a[None], b)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_not_compared(tiny: Encoder, bad: float) -> None:
    rows = np.ones((3, WIDTH), np.float32)
    worse = rows.copy()
    worse[2, 1] = bad
    for compare in (tiny.similarity, tiny.similarity_pairwise):
        with pytest.raises(TextError, match=r"b\[2\] is not finite"):
            compare(rows, worse)
        for others in ([["a"]], [["1_0"] * WIDTH], [[b"1"] * WIDTH], [["1", *[1.0] * (WIDTH - 1)]], rows + 1j):
            for values in (others, np.asarray(others, object)):
                with pytest.raises(TextError, match="^a "):
                    compare(values, rows)
        compare([[Fraction(1, 2)] * WIDTH], rows[:1])


@pytest.mark.parametrize("precision", PRECISIONS[1:])
def test_codes_are_not_compared_as_vectors(tiny: Encoder, precision: Any) -> None:
    vectors, codes = (tiny.encode(TEXTS, precision=name) for name in ("float32", precision))
    for compare in (tiny.similarity, tiny.similarity_pairwise):
        for a, b in ((codes, codes), (vectors, codes), (codes.tolist(), list(codes))):
            with pytest.raises(UsageError, match=rf"has dtype {codes.dtype}.*; wanted vectors of precision") as caught:
                compare(a, b)
            assert "\n" not in str(caught.value)
