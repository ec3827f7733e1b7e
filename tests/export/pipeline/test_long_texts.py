"""Test that texts of the maximum length are proven: what is wrong only beyond 1,024 tokens is refused."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from support.checkpoints import save_long_checkpoint
from support.families import WIDTH
from support.once import once
from whiten import Encoder, NoVectorError, ParityError, UsageError
from whiten_export.export import export_bundle
from whiten_export.graph import attention
from whiten_export.graph.attention import Window
from whiten_export.graph.build import Nodes
from whiten_export.recipe import Recipe
from whiten_runtime.bundle.manifest import TextMemory, read_manifest
from whiten_runtime.bundle.parity import read_probes
from whiten_runtime.inference import batching
from whiten_runtime.inference import engine as cpu
from whiten_runtime.inference.engine import Engine

LENGTH = 1300


@pytest.fixture(scope="session")
def long_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a small network for texts of 1,300 tokens."""

    def make(family: str) -> Path:
        save = partial(save_long_checkpoint, family, length=LENGTH, num_hidden_layers=2)
        return once(tmp_path_factory, f"long/{family}", save)

    return make


def export(checkpoint: Path, out: Path, **choices: Any) -> Path:
    recipe = Recipe(str(checkpoint), layers=(2,), whitening=None, max_length=LENGTH, **choices)
    export_bundle(recipe, out)
    return out


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_bundles_are_proven_to_their_last_token(
    family: str, long_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with Encoder(export(long_checkpoint(family), tmp_path / "bundle")) as encoder:
        parity = encoder.manifest.parity
        assert parity is not None
        assert parity.max_tokens == LENGTH
        probes = read_probes(encoder._bundle)
        assert probes.long is not None
        tokenizer = encoder._tokenizer
        lengths = [len(tokenizer.cut(row)) for row in tokenizer.tokenize(probes.long.texts)]
        assert lengths[0] == LENGTH
        assert LENGTH // 2 <= lengths[1] <= LENGTH
        whole, quick = encoder.verify(), encoder.verify(quick=True)
        assert (whole.vectors, whole.max_difference < 1e-5) == (quick.vectors + 3, True)


def with_broken_blocks(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Nodes, Window, ir.Value], tuple[Window, ir.Value]]
) -> None:
    """Break attention in texts of more than 512 tokens, and nothing else."""
    block = attention._block

    def broken(operands: Any, nodes: Nodes, row: ir.Value, *rest: Any) -> ir.Value:
        window, row = change(nodes, operands.attention.window, row)
        changed = dataclasses.replace(operands.attention, window=window)
        return block(dataclasses.replace(operands, attention=changed), nodes, row, *rest)

    monkeypatch.setattr(attention, "_block", broken)


def narrower(nodes: Nodes, window: Window, padding: ir.Value) -> tuple[Window, ir.Value]:
    """Let windows end one token too early."""
    return (window if window.left is None else dataclasses.replace(window, left=window.left - 1)), padding


def forgetful(nodes: Nodes, window: Window, padding: ir.Value) -> tuple[Window, ir.Value]:
    """Let tokens see padding from the second block on."""
    places = nodes.op("Range", nodes.integer(0), nodes.op("Squeeze", nodes.size(padding, 3)), nodes.integer(1))
    return window, nodes.op("Where", nodes.op("Less", places, nodes.integer(128)), padding, nodes.number(0.0))


def test_the_whole_check_pads_a_long_text_beside_a_short_one(
    long_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []
    run = Engine.run_feed

    def recorded(self: Engine, feed: Any, *rest: Any) -> Any:
        shapes.append(feed["input_ids"].shape)
        return run(self, feed, *rest)

    monkeypatch.setattr(Engine, "run_feed", recorded)
    with Encoder(long_bundle) as encoder:
        encoder.verify()
    assert shapes[-2] == (1, LENGTH)
    assert shapes[-1][0] == 2
    assert shapes[-1][1] >= LENGTH // 2


@pytest.mark.parametrize(
    ("family", "change", "precision"),
    [
        ("modernbert", narrower, "fp32"),
        ("bert", forgetful, "fp32"),
        ("bert", forgetful, "int8"),
    ],
)
def test_masks_that_are_wrong_in_long_texts_are_refused(
    family: str,
    change: Callable[[Nodes, Window, ir.Value], tuple[Window, ir.Value]],
    precision: str,
    long_checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_broken_blocks(monkeypatch, change)
    with pytest.raises(ParityError, match="no bundle was written"):
        export(long_checkpoint(family), tmp_path / "bundle", precision=precision)
    assert not (tmp_path / "bundle").exists()


def test_another_scale_in_long_texts_without_padding_is_refused(
    long_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = attention._fused_block

    def broken(original: Any, *rest: Any) -> ir.Value:
        return block(dataclasses.replace(original, scale=original.scale * 2), *rest)

    monkeypatch.setattr(attention, "ALONE_TOKENS", LENGTH - 1)  # so that the text of maximum length is such a one
    monkeypatch.setattr(attention, "_fused_block", broken)
    with pytest.raises(ParityError, match="no bundle was written"):
        export(long_checkpoint("bert"), tmp_path / "bundle")


def with_other_positions(monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], None]) -> None:
    """Change the rows of a graph's table of positions."""
    from whiten_export import export as pipeline

    reopen = pipeline.reopen_graph

    def changed(model: ir.Model, path: Path) -> ir.Model:
        arrays = {name: ir.convenience.get_const_tensor(value) for name, value in model.graph.initializers.items()}
        (name,) = (
            name for name, array in arrays.items() if array is not None and tuple(array.shape) == (LENGTH, WIDTH)
        )
        rows = arrays[name].numpy().copy()
        change(rows)
        model.graph.initializers[name].const_value = ir.tensor(rows, name=name)
        return reopen(model, path)

    monkeypatch.setattr(pipeline, "reopen_graph", changed)


def shorten(rows: np.ndarray) -> None:
    """Repeat the last row of a table of positions, as if it had been made for 1,100 tokens."""
    rows[1100:] = rows[1099]


def shift(rows: np.ndarray) -> None:
    """Let one of 1,300 positions be a little off."""
    rows[7] *= 1.05


def test_positions_that_end_too_early_are_refused(
    long_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_other_positions(monkeypatch, shorten)
    with pytest.raises(ParityError, match="no bundle was written"):
        export(long_checkpoint("bert"), tmp_path / "bundle")


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_a_fault_that_the_bounds_of_a_precision_allow_is_refused_by_those_of_float32(
    precision: str, long_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_other_positions(monkeypatch, shift)
    with pytest.raises(ParityError, match="wanted cosine >= 0.999999, .*the network computes something else"):
        export(long_checkpoint("bert"), tmp_path / "bundle", precision=precision)
    assert not (tmp_path / "bundle").exists()


def test_numbers_that_are_cut_off_in_long_texts_are_refused(
    long_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a constant scale of int8 that is too small for what only long texts hold."""
    scan = attention._scan

    def clipped(graph: Any, nodes: Nodes, *rest: Any) -> ir.Value:
        result = scan(graph, nodes, *rest)
        rounded = any(node.op_type == "MatMulInteger" for node in graph)
        return nodes.op("Clip", result, nodes.number(-0.02), nodes.number(0.02)) if rounded else result

    monkeypatch.setattr(attention, "_scan", clipped)
    with pytest.raises(ParityError, match="int8 costs these vectors too much"):
        export(long_checkpoint("bert"), tmp_path / "bundle", precision="int8")


@pytest.fixture(scope="session")
def long_bundle(tmp_path_factory: pytest.TempPathFactory, long_checkpoint: Callable[[str], Path]) -> Path:
    return once(tmp_path_factory, "long/bundle", lambda path: export(long_checkpoint("modernbert"), path))


def words(count: int) -> str:
    return "word " * count


def test_a_text_that_takes_too_much_memory_is_refused_before_it_runs(long_bundle: Path) -> None:
    memory = read_manifest(long_bundle).memory
    assert isinstance(memory, TextMemory)
    assert memory.pair_bytes == 0
    with Encoder(long_bundle, memory_limit=memory.of(700)) as encoder:
        assert encoder.encode([words(5), words(200)]).shape == (2, 32)
        with pytest.raises(
            NoVectorError, match=r"texts\[1\] has 1,300 tokens, which take about .*\(memory_limit\); shorten"
        ):
            encoder.encode([words(5), words(4000), words(7)])
    with Encoder(long_bundle, memory_limit=memory.of(LENGTH)) as encoder:
        assert encoder.encode([words(5), words(4000), words(7)]).shape == (3, 32)


def test_texts_of_a_batch_that_take_too_much_memory_are_computed_alone_or_told_each(
    long_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = read_manifest(long_bundle).memory
    assert isinstance(memory, TextMemory)
    texts = [words(4000), words(300), words(5), words(640)]
    with Encoder(long_bundle) as encoder:
        want = encoder.encode(texts[1:3])
    monkeypatch.setattr(batching.Schedule, "plan", lambda self, lengths, most=None: ([np.arange(len(lengths))], 1))
    with Encoder(long_bundle, memory_limit=memory.of(700)) as encoder:
        np.testing.assert_allclose(encoder.encode(texts[1:3]), want, atol=1e-5)
        with pytest.raises(NoVectorError, match=r"texts\[0\] has 1,300 tokens, .*, and 1 more such texts") as caught:
            encoder.encode(texts)
    assert caught.value.failures.keys() == {0, 3}
    assert caught.value.failures[3].startswith("has 1,2")


def test_only_sessions_of_long_texts_hold_no_buffers_between_layers(long_bundle: Path, tiny_bundle: Path) -> None:
    for bundle, shared in ((long_bundle, False), (tiny_bundle, True)):
        with Encoder(bundle) as encoder:
            engine: Any = encoder._engine
            for session in (engine._wide, engine._narrow):
                assert session.get().get_session_options().enable_mem_reuse is shared


@pytest.mark.parametrize("limit", [0, -1, 2.5])
def test_a_memory_limit_is_a_number_of_bytes(limit: Any, long_bundle: Path) -> None:
    with pytest.raises(UsageError, match="memory_limit"):
        Encoder(long_bundle, memory_limit=limit)


def test_texts_of_one_call_and_of_many_have_the_same_vectors(
    long_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts beyond a length run alone, first, and on all threads."""
    texts = [words(count) for count in (3, 300, 1200, 40, 800)]
    with Encoder(long_bundle, threads=2) as encoder:
        want = [encoder.encode(text) for text in texts]
    monkeypatch.setattr(batching, "ALONE_TOKENS", 600)
    monkeypatch.setattr(cpu, "ALONE_TOKENS", 600)
    with Encoder(long_bundle, threads=2) as encoder, ThreadPoolExecutor(5) as executor:
        np.testing.assert_allclose(encoder.encode(texts), want, atol=1e-5)
        np.testing.assert_allclose(list(executor.map(encoder.encode, texts)), want, atol=1e-5)
