"""Test folding of the embeddings that are added to those of words, where they do not depend on the text."""

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.tape import Tape

from whiten_export.graph.builder import constant, describe_input, save_graph
from whiten_export.graph.fold_positions import fold_positions
from whiten_runtime.errors import WhitenError
from whiten_runtime.ort.session import SessionOptions, create_session

LONGEST, WIDTH = 12, 4
Summand = Callable[[ir.Model, Tape, ir.Value, ir.Value], ir.Value]


def table(model: ir.Model, name: str, rows: int) -> ir.Value:
    numbers = np.random.default_rng(len(name)).normal(size=(rows, WIDTH))
    return constant(model.graph, name, numbers.astype(np.float32))


def whole(model: ir.Model, *numbers: int) -> ir.Value:
    return constant(model.graph, "whole" + "_".join(map(str, numbers)), np.array(numbers, np.int64))


def positions(model: ir.Model, tape: Tape, ids: ir.Value, mask: ir.Value) -> ir.Value:
    every = constant(model.graph, "every", np.arange(LONGEST, dtype=np.int64)[None])
    length = tape.op("Shape", [ids], {"start": 1, "end": 2})
    indices = tape.op("Slice", [every, whole(model, 0), length, whole(model, 1)])
    return tape.op("Gather", [table(model, "positions", LONGEST), indices])


def types(model: ir.Model, tape: Tape, ids: ir.Value, mask: ir.Value) -> ir.Value:
    return tape.op("Gather", [table(model, "types", 2), tape.op("Mul", [ids, whole(model, 0)])])


def of_the_ids(model: ir.Model, tape: Tape, ids: ir.Value, mask: ir.Value) -> ir.Value:
    return tape.op("Gather", [table(model, "kinds", 9), ids])


def of_the_mask(model: ir.Model, tape: Tape, ids: ir.Value, mask: ir.Value) -> ir.Value:
    return tape.op("Gather", [table(model, "masked", 2), mask])


def of_one_id(model: ir.Model, tape: Tape, ids: ir.Value, mask: ir.Value) -> ir.Value:
    is_it = tape.op("Cast", [tape.op("Equal", [ids, whole(model, 4)])], {"to": ir.DataType.INT64.value})
    return tape.op("Gather", [table(model, "special", 2), is_it])


def of_the_batch(model: ir.Model, tape: Tape, ids: ir.Value, mask: ir.Value) -> ir.Value:
    ones = tape.op("Add", [tape.op("Sub", [mask, mask]), whole(model, 1)])
    rows = tape.op("CumSum", [ones, constant(model.graph, "first", np.int64(0))])
    return tape.op("Gather", [table(model, "rows", 9), rows])


def built(*summands: Summand) -> ir.Model:
    ids, mask = (describe_input(ir.Value(name=name)) for name in ("input_ids", "attention_mask"))
    graph = ir.Graph([ids, mask], [], nodes=[], opset_imports={"": 20}, name="sum")
    model, tape = ir.Model(graph, ir_version=10), Tape()
    value = tape.op("Gather", [table(model, "words", 9), ids])
    for summand in summands:
        value = tape.op("Add", [summand(model, tape, ids, mask), value])
    value = tape.op("Neg", [value])
    value.name, value.type = "out", ir.TensorType(ir.DataType.FLOAT)
    graph.extend(tape.nodes)
    graph.outputs.append(value)
    return model


def output(model: ir.Model, path: Path) -> np.ndarray:
    save_graph(model, path)
    session = create_session(path, SessionOptions(threads=1))
    mask = (np.arange(LONGEST) < np.array([LONGEST, 5, 1])[:, None]).astype(np.int64)
    ids = np.random.default_rng(1).integers(0, 9, mask.shape)
    feed = {"input_ids": ids, "attention_mask": mask}
    found: np.ndarray
    (found,) = session.run(None, {value.name: feed[value.name] for value in session.get_inputs()})
    return found


@pytest.mark.parametrize(
    ("summands", "folded"),
    [
        ((positions,), 1),
        ((positions, types), 2),
        ((types,), 1),
        ((positions, of_the_ids, types), 2),
        ((of_the_mask, positions), 1),
        ((positions, of_one_id), 1),
        ((of_the_batch, positions), 1),
        ((of_the_ids,), 0),
        ((of_the_mask,), 0),
        ((of_one_id,), 0),
        ((of_the_batch,), 0),
        ((), 0),
    ],
)
def test_only_lookups_that_depend_on_the_position_alone_are_folded(
    summands: tuple[Summand, ...], folded: int, tmp_path: Path
) -> None:
    model = built(*summands)
    want = output(model, tmp_path / "model.onnx")
    assert fold_positions(model, LONGEST) == folded
    got = output(model, tmp_path / "folded.onnx")
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    kinds = [node.op_type for node in model.graph]
    if folded == len(summands) == 2:
        assert kinds == ["Gather", "Shape", "Slice", "Add", "Neg"]
    if summands == (types,):
        assert kinds == ["Gather", "Add", "Neg"]


def test_a_full_temporary_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ir, "save", save)
    with pytest.raises(WhitenError) as caught:
        fold_positions(built(positions), LONGEST)
    assert str(caught.value) == (
        f"{tmp_path}: cannot be written (No space left on device); check space and permissions, or name another TMPDIR"
    )
    assert not list(tmp_path.iterdir())
