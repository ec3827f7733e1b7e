"""Test what the gate says of a bundle that fails: on which texts, and what may help."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from whiten import ParityError
from whiten_export.proof.gate import Definition, Expected, Outcome, Request, check_bundle, compute_expected, failure
from whiten_export.proof.reference import Composition, Reference
from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.parity import Agreement, Probes, compare, read_probes
from whiten_runtime.errors import RunError, WhitenError
from whiten_runtime.inference.engine import Engine
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter

VECTORS = np.random.default_rng(1).normal(size=(9, 4))
GOOD, BAD = compare(VECTORS, VECTORS), compare(VECTORS, VECTORS[::-1])


def line(alone: Agreement = BAD, precision: Any = "fp32", remedies: tuple[str, ...] = ()) -> str:
    expected = Expected("torch", Probes(tuple("abcdefghi"), VECTORS, VECTORS))
    return str(failure(Outcome(BAD, alone), expected, precision, "this network", remedies))


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

    name = "torch 9, float64"

    def __init__(self, limit: int, error: Exception) -> None:
        self._limit, self._error = limit, error

    def pooled(self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]) -> NDArray[np.float64]:
        if input_ids.shape[1] > self._limit:
            raise self._error
        return np.ones((1, len(input_ids), 4))


def expected_of(limit: int, error: Exception) -> Expected:
    definition = Definition(Broken(limit, error), Composition((1,)), 4)
    return compute_expected(definition, [Request("", ("a", "b"), ids=[[5] * 70, [5] * 3])], [], Reporter())


@pytest.mark.parametrize("limit", [1, 2, 34, 35, 68, 69])
def test_length_on_which_the_reference_fails_is_named(limit: int) -> None:
    message = (
        f"text of 70 tokens (IndexError: index out of range), but not on one of {limit}: pass --max-length {limit};"
    )
    with pytest.raises(ParityError, match=re.escape(message)):
        expected_of(limit, IndexError("index out\nof range"))


def test_reference_that_computes_no_text_is_named() -> None:
    with pytest.raises(ParityError, match="and on shorter ones: the bundle cannot be compared with it"):
        expected_of(0, RuntimeError("Float and Double"))


@pytest.mark.parametrize("error", [MemoryError("no memory"), WhitenError("its own words")])
def test_other_errors_of_a_reference_go_through(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        expected_of(2, error)


def test_length_on_which_onnxruntime_fails_is_named(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: Callable[..., NDArray[np.float32]] = Engine.run_batch

    def fail(self: Engine, feed: Any, *values: Any) -> NDArray[np.float32]:
        if feed["input_ids"].shape[1] > 11:
            raise RunError("onnxruntime failed: GatherElements: out of range")
        return run(self, feed, *values)

    monkeypatch.setattr(Engine, "run_batch", fail)
    probes = read_probes(open_bundle(golden / "bundle-v1"))
    with pytest.raises(ParityError) as error:
        check_bundle(golden / "bundle-v1", Expected("", probes), SessionOptions(threads=1))
    assert re.match(r"a text of \d+ tokens has no vector \(onnxruntime failed: ", str(error.value))
    assert "but one of 11 has: pass --max-length 11; no bundle was written" in str(error.value)


def test_bundle_agrees_alone_and_in_batches(golden: Path) -> None:
    probes = read_probes(open_bundle(golden / "bundle-v1"))
    outcome = check_bundle(golden / "bundle-v1", Expected("", probes), SessionOptions(threads=1))
    assert max(outcome.agreement.max_difference, outcome.alone.max_difference) < 1e-5
