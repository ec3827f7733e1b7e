"""Test what the gate says of a bundle that fails: on which texts, and what may help."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from whiten import ParityError
from whiten_export.proof.gate import (
    Case,
    Definition,
    Expected,
    PublishedVectors,
    check_bundle,
    compare_published,
    compute_expected,
    failure,
    longest_texts,
)
from whiten_export.proof.reference import Composition, Reference
from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.parity import Agreement, compare, read_probes
from whiten_runtime.errors import RunError, WhitenError
from whiten_runtime.inference.engine import Engine
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter

VECTORS = np.random.default_rng(1).normal(size=(9, 4))
GOOD, BAD = compare(VECTORS, VECTORS), compare(VECTORS, VECTORS[::-1])


def line(alone: Agreement = BAD, precision: Any = "fp32", remedies: tuple[str, ...] = ()) -> str:
    expected = Expected("torch", [Case((), expected=VECTORS, texts=tuple("abcdefghi"))])
    return str(failure(expected, BAD, alone, precision, "this network", remedies))


def test_only_what_an_export_has_is_offered() -> None:
    assert "not supported" in line()
    for word in ("pooling", "--dim", "whitening", "layers;"):
        assert word not in line()
    offered = line(remedies=("other layers", "a smaller --dim"))
    assert "use other layers or a smaller --dim; no bundle was written" in offered
    assert "int8 costs these vectors too much: use --precision fp32 or other layers;" in line(
        precision="int8", remedies=("other layers",)
    )


def test_vectors_that_depend_on_padding_are_named() -> None:
    assert "depend on padding" in line(GOOD)
    assert "depend on padding" not in line(BAD)


class Broken(Reference):
    """Fails on texts of more tokens than a limit."""

    name = "torch 9, float32"

    def __init__(self, limit: int, error: Exception) -> None:
        self._limit, self._error = limit, error

    def pooled(self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]) -> NDArray[np.float64]:
        if input_ids.shape[1] > self._limit:
            raise self._error
        return np.ones((1, len(input_ids), 4))


def expected_of(limit: int, error: Exception, long: bool = False) -> Expected:
    definition = Definition(Broken(limit, error), Composition((1,)), 4)
    return compute_expected(definition, [Case([[5] * 70, [5] * 3], texts=("a", "b"), long=long)], Reporter())


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(("limit", "length"), [(1, 70), (69, 70), (2, 70)])
def test_text_on_which_the_reference_fails_is_named(limit: int, length: int, long: bool) -> None:
    message = f"torch 9, float32 fails on a text of {length} tokens (IndexError: index out of range); pass a smaller"
    with pytest.raises(ParityError, match=re.escape(message)):
        expected_of(limit, IndexError("index out\nof range"), long)


@pytest.mark.parametrize("error", [MemoryError("no memory"), WhitenError("its own words")])
def test_other_errors_of_a_reference_go_through(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        expected_of(2, error)


def golden_case(golden: Path) -> Case:
    probes = read_probes(open_bundle(golden / "bundle-v1"))
    return Case((), expected=probes.unwhitened, texts=probes.texts)


def test_text_on_which_onnxruntime_fails_is_named(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: Callable[..., NDArray[np.float32]] = Engine.run_feed

    def fail(self: Engine, feed: Any, *values: Any) -> NDArray[np.float32]:
        if feed["input_ids"].shape[1] > 11:
            raise RunError("onnxruntime failed: GatherElements: out of range")
        return run(self, feed, *values)

    monkeypatch.setattr(Engine, "run_feed", fail)
    with pytest.raises(ParityError) as error:
        check_bundle(golden / "bundle-v1", Expected("", [golden_case(golden)]), SessionOptions(threads=1))
    assert re.match(r"a text of \d+ tokens has no vector \(onnxruntime failed: ", str(error.value))
    assert str(error.value).endswith("; pass a smaller --max-length; no bundle was written")


def test_texts_that_the_authors_program_cuts_elsewhere_are_refused() -> None:
    """Even where their vectors would agree."""
    cases = [Case([[1, 2], [1, 2, 3, 4]], expected=VECTORS[:2], texts=("a", "b c d"))]
    assert longest_texts(cases) == [("a", [1, 2]), ("b c d", [1, 2, 3, 4])]
    long = Case([[1] * 70, [1] * 40], expected=VECTORS[2:4], texts=("e" * 90, "f"), long=True)
    same = PublishedVectors("other 1", (VECTORS[:2],), [*cases[0].ids, *long.ids])
    assert compare_published([*cases, long], same, False, "m").vectors == 2
    for place, ids in ((1, [1, 2, 3, 4, 5]), (2, [1] * 71)):
        longest = [*same.longest[:place], ids, *same.longest[place + 1 :]]  # type: ignore[index]
        with pytest.raises(ParityError, match=f"other 1 reads {len(ids)} tokens of a long text"):
            compare_published([*cases, long], PublishedVectors("other 1", same.vectors, longest), False, "m")
