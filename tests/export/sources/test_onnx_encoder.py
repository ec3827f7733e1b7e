"""Test directories of ONNX encoders: what is read and what is refused. Those of optimum are in tests/clients."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx_ir.tape import Tape

from support.checkpoints import change_json, write_json, write_modules
from support.cli import ok, python, refused
from support.families import LAYERS, MAX_LENGTH, WIDTH
from support.onnx_folders import rename_last, save_encoder
from whiten import Encoder
from whiten_export.graph.build import constant
from whiten_export.sources.resolve import resolve
from whiten_runtime.bundle.parity import GATES, compare

pytestmark = pytest.mark.slow


def add_inputs(model: ir.Model) -> None:
    """Add token types that change nothing if they are 0, and positions that change nothing if they count from 0."""
    ids, mask = model.graph.inputs
    types, positions = (
        ir.Value(name=f"{name}_ids", type=ids.type, shape=ids.shape) for name in ("token_type", "position")
    )
    model.graph.inputs.extend([types, positions])
    state, tape = model.graph.outputs[0], Tape()
    axis, last = constant(model.graph, "axis_1", np.int64(1)), constant(model.graph, "axes_2", np.array([2]))
    ahead = tape.op("Sub", [tape.op("CumSum", [mask, axis]), positions])  # 1 at every token
    odd = tape.op("Add", [tape.op("Sub", [ahead, mask]), types])  # 0 at every token
    added = tape.op("Cast", [tape.op("Mul", [odd, mask])], {"to": ir.DataType.FLOAT.value})
    total = tape.op("Add", [state, tape.op("Unsqueeze", [added, last])])
    total.type, total.shape, total.name = state.type, state.shape, "last_hidden_state"
    model.graph.extend(tape.nodes)
    model.graph.outputs[0] = total


@pytest.fixture(scope="module")
def encoder_directory(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an encoder with hidden states 0, 2 and the last."""
    folder = tmp_path_factory.mktemp("onnx") / "encoder"
    return save_encoder(checkpoint("bert"), folder, (0, 2, LAYERS), rename_last)


@pytest.fixture
def folder(encoder_directory: Path, tmp_path: Path) -> Path:
    """Copy the encoder, to be changed."""
    return Path(shutil.copytree(encoder_directory, tmp_path / "encoder"))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("layers", [(0,), (2, LAYERS), (LAYERS,)])
def test_bundle_equals_the_one_made_from_pytorch(
    encoder_directory: Path,
    checkpoint: Callable[[str], Path],
    corpus_file: Path,
    tmp_path: Path,
    layers: tuple[int, ...],
    precision: str,
) -> None:
    options = ("--layers", ",".join(map(str, layers)), "--precision", precision)
    whitening = ("--corpus", corpus_file) if precision == "fp32" else ("--whitening", "none")
    for source, name in ((encoder_directory, "theirs"), (checkpoint("bert"), "ours")):
        ok("export", source, *options, *whitening, "--out", tmp_path / name)
    with Encoder(tmp_path / "theirs") as theirs, Encoder(tmp_path / "ours") as ours:
        texts = ["", "a", "the committee postponed its decision", "word " * 100]
        got, want = theirs.encode(texts), ours.encode(texts)
        if precision == "int8" and layers != (0,):  # an attention that is not marked keeps its scale apart
            assert GATES["int8"].passes(compare(got[1:].astype(float), want[1:].astype(float)))
        else:
            np.testing.assert_allclose(got, want, atol=2e-4)
        assert "the original graph" in theirs.manifest.parity.reference  # type: ignore[union-attr]
        assert (theirs.max_seq_length, theirs.dimension) == (ours.max_seq_length, WIDTH)
        assert GATES[theirs.manifest.precision].passes(theirs.verify())


def test_token_types_and_positions_are_derived(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = save_encoder(checkpoint("bert"), tmp_path / "encoder", (LAYERS,), add_inputs)
    assert len(onnx.load(folder / "model.onnx").graph.input) == 4
    ok("export", folder, "--whitening", "none", "--out", tmp_path / "b")
    ok("export", checkpoint("bert"), "--layers", "-1", "--whitening", "none", "--out", tmp_path / "c")
    texts = ["", "a longer text than that", "b"]
    np.testing.assert_allclose(Encoder(tmp_path / "b").encode(texts), Encoder(tmp_path / "c").encode(texts), atol=1e-5)


def test_external_weights_in_an_onnx_folder_are_read(folder: Path, tmp_path: Path) -> None:
    (folder / "onnx").mkdir()
    ir.save(ir.load(folder / "model.onnx"), folder / "onnx" / "model.onnx", external_data="model.onnx_data")
    (folder / "model.onnx").unlink()
    ok("export", folder, "--whitening", "none", "--out", tmp_path / "b")
    found = resolve(str(folder))
    assert [path.name for path in found.weights] == ["model.onnx", "model.onnx_data"]


def test_links_into_another_folder_are_followed(folder: Path, tmp_path: Path) -> None:
    """The hub's cache has such links, to files that are named by their hashes."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    ir.save(ir.load(folder / "model.onnx"), folder / "model.onnx", external_data="weights.bin")
    for name in ("model.onnx", "weights.bin"):
        (folder / name).rename(blobs / f"hash-of-{name}")
        (folder / name).symlink_to(Path("..", "blobs", f"hash-of-{name}"))
    whole = resolve(str(folder)).weights_sha256
    ok("export", folder, "--whitening", "none", "--out", tmp_path / "b")
    with (blobs / "hash-of-weights.bin").open("r+b") as file:
        file.write(b"\x01")
    assert resolve(str(folder)).weights_sha256 != whole
    (folder / "weights.bin").unlink()
    assert "'weights.bin', which is not there" in refused("export", folder)


def test_tokenizer_that_contradicts_its_config_is_refused(folder: Path, tmp_path: Path) -> None:
    """tokenizer.json lower-cases, tokenizer_config.json says that it does not: the ids of transformers decide."""
    change_json(folder / "tokenizer_config.json", do_lower_case=False)
    error = refused("export", folder, "--whitening", "none", "--out", tmp_path / "b", code=1)
    assert "gives other ids than the checkpoint's" in error


def test_encoder_of_one_block_is_exported(folder: Path, tmp_path: Path) -> None:
    change_json(folder / "config.json", num_hidden_layers=1)
    ok("export", folder, "--whitening", "none", "--out", tmp_path / "b")


def test_export_runs_without_torch_and_transformers(encoder_directory: Path, corpus_file: Path, tmp_path: Path) -> None:
    """Export in a process that cannot import them."""
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers'): sys.modules[name] = None\n"
        "from whiten_export.commands.export import main\nmain()"
    )
    done = python(code, encoder_directory, "--corpus", corpus_file, "--out", tmp_path / "b")
    assert done.returncode == 0, done.stderr
    with Encoder(tmp_path / "b") as encoder:
        assert encoder.manifest.layers == (LAYERS,)  # the default is the last
        assert GATES["fp32"].passes(encoder.verify())


def foreign_operator(model: ir.Model) -> None:
    node = next(node for node in model.graph if node.op_type == "MatMul")
    node.domain = "com.microsoft"
    model.graph.opset_imports["com.microsoft"] = 1


def unknown_input(model: ir.Model) -> None:
    ids = model.graph.inputs[0]
    model.graph.inputs.append(ir.Value(name="past_key_values.0.key", type=ids.type, shape=ids.shape))


def fixed_size(model: ir.Model) -> None:
    model.graph.inputs[0].shape = ir.Shape([1, 32])


def half_output(model: ir.Model) -> None:
    state, tape = model.graph.outputs[0], Tape()
    half = tape.op("Cast", [state], {"to": ir.DataType.FLOAT16.value})
    half.type, half.shape = ir.TensorType(ir.DataType.FLOAT16), state.shape
    state.name, half.name = "full", "last_hidden_state"
    model.graph.extend(tape.nodes)
    model.graph.outputs[0] = half


def control_flow(model: ir.Model) -> None:
    next(node for node in model.graph if node.op_type == "MatMul").op_type = "Loop"


def unknown_output(model: ir.Model) -> None:
    for index, value in enumerate(model.graph.outputs):
        value.name = f"logits_{index}"


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (foreign_operator, 1, "operator com.microsoft::MatMul, which a bundle for cpu may not use"),
        (control_flow, 1, "operator Loop, which a bundle for cpu may not use"),
        (unknown_input, 2, "takes past_key_values.0.key, which token ids do not give"),
        (unknown_output, 2, "gives logits_0"),
        (fixed_size, 2, "takes input_ids as tensor(int64) [1, 32]"),
        (half_output, 2, "gives last_hidden_state, tensor(float16)"),
    ],
)
def test_unsupported_graphs_are_refused(
    checkpoint: Callable[[str], Path], tmp_path: Path, change: Callable[[ir.Model], None], code: int, message: str
) -> None:
    folder = save_encoder(checkpoint("bert"), tmp_path / "encoder", (LAYERS,), change)
    assert message in refused("export", folder, "--whitening", "none", "--out", tmp_path / "b", code=code)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({}, ["--layers", "1"], "layer 1 cannot be exported: this model gives only 0, 2, 4"),
        ({}, ["--pooling", "sif"], "is not a file of word vectors"),
        ({}, ["--pooling", "pooler"], "pooling pooler needs the network's own pooler, which"),
        ({"num_hidden_layers": None}, [], "config.json has no num_hidden_layers"),
    ],
)
def test_unavailable_layers_and_options_are_refused(
    folder: Path, tmp_path: Path, config: dict[str, Any], options: list[str], message: str
) -> None:
    change_json(folder / "config.json", **config)
    assert message in refused("export", folder, *options, "--out", tmp_path / "b")


def test_bundle_is_refused_as_a_model(tiny_bundle: Path) -> None:
    assert "is a bundle already" in refused("export", tiny_bundle)


def test_files_of_sentence_transformers_beside_a_graph_are_obeyed(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """The graph gives hidden states; pooling, normalisation and prompts are those of the folder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    folder = save_encoder(checkpoint("bert"), tmp_path / "onnx", (LAYERS,), rename_last)
    write_modules(folder, "Transformer", "Pooling", "Normalize")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "find: "}})
    ok("export", folder, "--out", tmp_path / "bundle")
    parts = [modules.Transformer(str(checkpoint("bert"))), modules.Pooling(WIDTH, "cls"), modules.Normalize()]
    peer = SentenceTransformer(modules=parts, device="cpu")
    with Encoder(tmp_path / "bundle") as encoder:
        assert encoder.manifest.published is None  # its reference is the graph
        for prompt in ("", "find: "):
            want = peer.encode(["A text.", "Another one"], prompt=prompt, batch_size=1)
            np.testing.assert_allclose(encoder.encode(["A text.", "Another one"], prompt=prompt), want, atol=1e-5)


@pytest.mark.parametrize(("family", "bounded"), [("bert", True), ("roberta", True), ("llama", False)])
def test_only_a_table_of_positions_bounds_a_graph(
    family: str, bounded: bool, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = save_encoder(checkpoint(family), tmp_path / "encoder", (LAYERS,), rename_last)
    options = ("--whitening", "none", "--max-length", MAX_LENGTH + 9, "--out", tmp_path / "b")
    if bounded:
        assert f"positions for {MAX_LENGTH} tokens" in refused("export", folder, *options)
        return
    ok("export", folder, *options)
    with Encoder(tmp_path / "b") as encoder:
        assert encoder.max_seq_length == MAX_LENGTH + 9
