"""Test folding of the embeddings that are added to those of words, where they do not depend on the text."""

import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from support.graphs import TOKENS, graph_of
from whiten_export.graph.build import save_graph
from whiten_export.graph.positions import fold_positions
from whiten_runtime.errors import WhitenError
from whiten_runtime.ort.session import SessionOptions, create_session

LONGEST, WIDTH = 12, 4
ROWS = {"words": 9, "positions": LONGEST, "types": 2, "kinds": 9, "masked": 2, "special": 2, "rows": 9}
RANDOM = np.random.default_rng(0)
ARRAYS = {name: RANDOM.normal(size=(rows, WIDTH)).astype(np.float32) for name, rows in ROWS.items()}
ARRAYS |= {f"whole{number}": np.array([number]) for number in (0, 1, 4)}
ARRAYS |= {"every": np.arange(LONGEST)[None], "first": np.int64(0)}

SUMMANDS = {
    "position": "n = Shape<start=1, end=2>(input_ids) upto = Slice(every, whole0, n, whole1) "
    "position = Gather(positions, upto)",
    "type": "zeros = Mul(input_ids, whole0) type = Gather(types, zeros)",
    "id": "id = Gather(kinds, input_ids)",
    "mask": "mask = Gather(masked, attention_mask)",
    "one_id": "is_it = Equal(input_ids, whole4) as_row = Cast<to=7>(is_it) one_id = Gather(special, as_row)",
    "batch": "none = Sub(attention_mask, attention_mask) ones = Add(none, whole1) row = CumSum(ones, first) "
    "batch = Gather(rows, row)",
}


def built(*summands: str) -> ir.Model:
    """Return a graph that adds rows of tables, each by what it is named for, to those of the words."""
    body, last = "word = Gather(words, input_ids) ", "word"
    for number, name in enumerate(summands):
        body += f"{SUMMANDS[name]} sum{number} = Add({name}, {last}) "
        last = f"sum{number}"
    text = f"({TOKENS}) => (float[batch_size, sequence_length, {WIDTH}] out) {{ {body} out = Neg({last}) }}"
    return graph_of(text, ARRAYS)


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
        (("position",), 1),
        (("position", "type"), 2),
        (("type",), 1),
        (("position", "id", "type"), 2),
        (("mask", "position"), 1),
        (("position", "one_id"), 1),
        (("batch", "position"), 1),
        (("id",), 0),
        (("mask",), 0),
        (("one_id",), 0),
        (("batch",), 0),
        ((), 0),
    ],
)
def test_only_lookups_that_depend_on_the_position_alone_are_folded(
    summands: tuple[str, ...], folded: int, tmp_path: Path
) -> None:
    model = built(*summands)
    want = output(model, tmp_path / "model.onnx")
    assert fold_positions(model, LONGEST) == folded
    got = output(model, tmp_path / "folded.onnx")
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    kinds = [node.op_type for node in model.graph]
    if folded == len(summands) == 2:
        assert kinds == ["Gather", "Shape", "Slice", "Add", "Neg"]
    if summands == ("type",):
        assert kinds == ["Gather", "Add", "Neg"]


def test_a_full_temporary_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ir, "save", save)
    with pytest.raises(WhitenError) as caught:
        fold_positions(built("position"), LONGEST)
    assert str(caught.value) == (
        f"{tmp_path}: cannot be written (No space left on device); check space and permissions, or name another TMPDIR"
    )
    assert not list(tmp_path.iterdir())
