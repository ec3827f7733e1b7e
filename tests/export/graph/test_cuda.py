"""Test graphs for CUDA on CPU kernels: fused operators and a float16 network give the same vectors."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from support.cli import ok
from support.families import FAMILIES, MAX_LENGTH, WIDENED, WIDENED_LAYERS
from support.graphs import default_session
from whiten import Encoder
from whiten_export import prove
from whiten_export.export import export_bundle
from whiten_export.graph.attention import lower_attention
from whiten_export.graph.build import save_graph
from whiten_export.graph.cuda import CONTRIB, fuse_for_cuda
from whiten_export.graph.ends import pool_graph, set_head
from whiten_export.graph.precision import halve_network
from whiten_export.proof.reference import Composition
from whiten_export.recipe import Recipe
from whiten_export.sources.open_model import open_model
from whiten_export.sources.resolve import resolve
from whiten_runtime.bundle.bundle import MODEL_FILE
from whiten_runtime.bundle.graph import OUTPUT, scan_graph, unwanted
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.parity import GATES, compare
from whiten_runtime.inference.batching import pad_batch
from whiten_runtime.inference.loading import open_engine
from whiten_runtime.ort.doctor import ProviderCheck
from whiten_runtime.ort.session import SessionOptions, create_session

pytestmark = pytest.mark.slow

NOT_FUSED = ("squeezebert", "mpnet", "deberta", "deberta-v2", "xlm", "t5")
"""Families whose attention is neither marked nor known to onnxscript."""

MASKS = {"Attention": 5, "MultiHeadAttention": 5}
"""Fused operators of onnxruntime, and the index of the mask among their inputs."""

WITH_BIAS = {
    **dict.fromkeys(("gpt2", "llama", "layoutlm", "mistral", "qwen2", "qwen3"), (False,)),
    **dict.fromkeys(("modernbert", "gemma3_text"), (True, False)),
}
"""Whether lengths say it all, in families in which not every token sees every other, or not in every layer."""


def outputs(model: ir.Model, path: Path, vocabulary: int) -> NDArray[np.float32]:
    """Return the vectors of padded batches."""
    save_graph(model, path)
    assert unwanted(scan_graph(path), "cuda") is None
    random = np.random.default_rng(0)
    engine = open_engine(path, 0)
    found = []
    for lengths in ((1,), (7, 3, 1), (33, 20), (5,) * 4, (MAX_LENGTH - 2, 1)):
        mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
        ids = random.integers(5, vocabulary, mask.shape) * mask
        found.append(engine.run_feed({"input_ids": ids, "attention_mask": mask}, (OUTPUT,)))
    engine.close()
    return np.concatenate(found)


def check_normalisations(graph: ir.Model, path: Path) -> None:
    """Check the needs of CUDA's strict normalisations: summands of one shape, and no output for an unused sum."""
    nodes = [node for node in graph.graph if node.op_type.startswith("Skip")]
    assert all(len(node.outputs) == 1 or list(node.outputs[-1].uses()) for node in nodes)
    ends = [value for node in nodes for value in node.inputs[:2]]
    if not ends:
        return
    outputs = list(graph.graph.outputs)
    graph.graph.outputs[:] = dict.fromkeys(ends)
    save_graph(graph, path)
    graph.graph.outputs[:] = outputs
    session = create_session(path, SessionOptions(threads=1))
    ids = np.ones((3, 7), np.int64)
    found = session.run([value.name for value in ends], {"input_ids": ids, "attention_mask": ids})
    assert [one.shape for one in found[::2]] == [other.shape for other in found[1::2]]


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_graph_of_each_family_gives_the_same_vectors(
    checkpoint: Callable[..., Path], family: str, tmp_path: Path
) -> None:
    directory = str(checkpoint(family, WIDENED))
    model = open_model(resolve(directory))
    width, random = model.record.hidden_size, np.random.default_rng(1)
    graph = pool_graph(model.hidden_states((1, WIDENED_LAYERS), "mean"), Composition((1, WIDENED_LAYERS)), width)
    set_head(graph, (random.normal(size=width), random.normal(size=(width, 8))), False)
    plain = graph.clone()
    lower_attention(plain, MAX_LENGTH)
    want = outputs(plain, tmp_path / "plain" / "model.onnx", model.vocab_size)
    assert fuse_for_cuda(graph) == (0 if family in NOT_FUSED else WIDENED_LAYERS)
    check_attention(graph, family)
    got = compare(outputs(graph, tmp_path / "fused" / "model.onnx", model.vocab_size), want)
    assert GATES["fp32"].passes(got), got
    check_normalisations(graph, tmp_path / "skips" / "model.onnx")
    halve_network(graph)
    got = compare(outputs(graph, tmp_path / "half" / "model.onnx", model.vocab_size), want)
    assert GATES["fp16"].passes(got), got
    assert got.max_difference > 1e-6  # something was rounded


def test_tokens_of_a_prompt_that_is_left_out_of_the_pooling_count_as_tokens(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    directory = str(checkpoint("bert", WIDENED))
    model = open_model(resolve(directory))
    composition = Composition((WIDENED_LAYERS,), include_prompt=False)
    graph = pool_graph(model.hidden_states((WIDENED_LAYERS,), "mean"), composition, model.record.hidden_size)
    set_head(graph, None, False)
    batch = pad_batch([[5, 6, 7, 8, 9], [9, 7, 5], [8, 6, 5, 7]], 0, prompt_tokens=2)

    def vectors() -> NDArray[np.float32]:
        save_graph(graph, tmp_path / "model.onnx")
        return open_engine(tmp_path / "model.onnx", 0).run_feed(batch)

    marked = graph
    graph = marked.clone()
    lower_attention(graph, MAX_LENGTH)
    want = vectors()
    graph = marked
    assert fuse_for_cuda(graph) == WIDENED_LAYERS
    assert GATES["fp32"].passes(compare(vectors(), want))


def check_attention(graph: ir.Model, family: str) -> None:
    """Check that each attention has either a bias or the lengths of texts."""
    by_lengths = set()
    for node in graph.graph:
        if node.op_type == "Attention" and not node.domain:
            by_lengths.add(True)
            lengths = node.inputs[6]
            assert lengths is not None
            mask = (np.arange(5) < np.array([5, 3, 1])[:, None]).astype(np.int64)
            part = ir.convenience.extract(graph.graph, list(graph.graph.inputs), [lengths])
            session = default_session(ir.to_proto(ir.Model(part, ir_version=graph.ir_version)).SerializeToString())
            (found,) = session.run(None, {value.name: mask for value in session.get_inputs()})
            assert found.tolist() == [5, 3, 1]
        elif node.op_type in MASKS:
            by_lengths.add(False)
            assert node.inputs[MASKS[node.op_type]] is not None
    if family not in NOT_FUSED:
        assert by_lengths == set(WITH_BIAS.get(family, (True,)))
        assert graph.graph.opset_imports[""] == (24 if True in by_lengths else 20)


@pytest.fixture(scope="module")
def bundle(checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "bundle"
    recipe = Recipe(str(checkpoint("bert", WIDENED)), layers=(1, WIDENED_LAYERS), max_sentences=600)
    export_bundle(replace(recipe, precision="fp16", target="cuda"), path)
    return path


def test_cuda_bundle_is_fused_and_agrees_with_the_cpu_bundle(
    bundle: Path, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    graph = ir.load(bundle / MODEL_FILE)
    kinds = Counter(node.op_type for node in graph.graph if node.domain == CONTRIB)
    assert kinds == {"SkipLayerNormalization": 2 * WIDENED_LAYERS, "BiasGelu": WIDENED_LAYERS}
    large = [value for value in graph.graph.initializers.values() if value.const_value.size > 1024]
    assert {str(value.name) for value in large if value.dtype == ir.DataType.FLOAT} == {"whitening.weight"}
    assert {value.dtype for value in graph.graph.outputs} == {ir.DataType.FLOAT}
    manifest = read_manifest(bundle)
    assert (manifest.precision, manifest.target) == ("fp16", "cuda")
    assert manifest.parity is not None
    assert manifest.parity.provider == "CPUExecutionProvider"
    plain = tmp_path / "plain"
    recipe = Recipe(str(checkpoint("bert", WIDENED)), layers=(1, WIDENED_LAYERS), max_sentences=600)
    export_bundle(recipe, plain)
    texts = ["", "a", "A sentence of some words.", "word " * 60]
    with Encoder(bundle) as fused, Encoder(plain) as encoder:
        assert GATES["fp16"].passes(fused.verify())
        assert GATES["fp16"].passes(compare(fused.encode(texts), encoder.encode(texts)))


def test_cuda_bundle_can_be_refitted(bundle: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("\n".join(f"sentence number {index} of {index * index % 97}" for index in range(400)))
    ok("refit", bundle, "--corpus", words, "--out", tmp_path / "anew")
    with Encoder(tmp_path / "anew") as encoder:
        assert encoder.manifest.target == "cuda"
        assert GATES["fp16"].passes(encoder.verify())


def test_export_is_verified_on_cuda_if_it_works(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove, "check_provider", lambda ort, provider: ProviderCheck(provider[0], True))
    recipe = Recipe(str(checkpoint("bert")), layers=(1,), whitening=None, target="cuda")
    with pytest.raises(Exception, match="CUDAExecutionProvider"):  # this machine has none
        export_bundle(recipe, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
