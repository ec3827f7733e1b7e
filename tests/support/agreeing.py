"""Changing bundles as another export would have written them: the graph is that of the changed manifest."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from support.bundles import edit_manifest, rewrite_file
from whiten_runtime.bundle.bundle import MODEL_FILE, PROBE_VECTORS_FILE, WHITENING_FILE
from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.space import space_id

if TYPE_CHECKING:  # onnx is not installed beside every runtime that is tested
    from onnx import GraphProto, ModelProto, NodeProto


def change_bundle(bundle: Path, **fields: Any) -> None:
    """Change fields of a manifest, and the graph and the probes with them.

    `whitening=None` takes the whitening out of the graph, and another record of it changes nothing but what is said of
    it; `normalize=True` ends the graph with a division by the norm; `include_prompt=False` makes it leave out of the
    pooling the tokens whose mask is 2.
    """
    if "whitening" in fields and fields["whitening"] is None:
        _remove_whitening(bundle)
    if fields.get("normalize"):
        _normalize(bundle)
    if fields.get("include_prompt") is False:
        _leave_prompts_out(bundle)
    edit_manifest(bundle, lambda manifest: manifest.update(fields))
    renew_space(bundle)


def renew_space(bundle: Path) -> None:
    """Give a manifest that states the id of its space the right one."""
    manifest = read_manifest(bundle)
    if manifest.space is not None:
        edit_manifest(bundle, lambda fields: fields.update(space=space_id(manifest)))


def _remove_whitening(bundle: Path) -> None:
    """Remove the two nodes of a whitening that keeps the width; what followed them follows the pooling."""
    model = _load(bundle)
    graph = model.graph
    (centre,) = (node for node in graph.node if list(node.input[1:]) == ["whitening.mean"])
    (turn,) = (node for node in graph.node if list(node.input[1:]) == ["whitening.weight"])
    before, after = centre.input[0], turn.output[0]
    _remove(graph, [centre, turn])
    for tensor in [one for one in graph.initializer if one.name in ("whitening.mean", "whitening.weight")]:
        graph.initializer.remove(tensor)
    for value in [one for one in graph.value_info if one.name == before]:
        graph.value_info.remove(value)
    for node in graph.node:
        node.input[:] = [after if name == before else name for name in node.input]
        node.output[:] = [after if name == before else name for name in node.output]
    _save(bundle, model)
    _change_probes(bundle, "unwhitened")
    (bundle / WHITENING_FILE).unlink()
    edit_manifest(bundle, lambda manifest: manifest["files"].pop(WHITENING_FILE))
    edit_manifest(bundle, lambda manifest: manifest.update(whitening=None))


def _normalize(bundle: Path) -> None:
    """End the graph with x / max(sqrt(sum(x x)), 1e-12), as an export does."""
    from onnx import helper, numpy_helper

    model = _load(bundle)
    graph = model.graph
    (place,) = (index for index, node in enumerate(graph.node) if OUTPUT in node.output)
    graph.node[place].output[0] = "raw"
    graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "norm.axes"))
    graph.initializer.append(numpy_helper.from_array(np.array(1e-12, np.float32), "norm.least"))
    ends = [
        helper.make_node("Mul", ["raw", "raw"], ["norm.squares"]),
        helper.make_node("ReduceSum", ["norm.squares", "norm.axes"], ["norm.sum"], keepdims=1),
        helper.make_node("Sqrt", ["norm.sum"], ["norm.root"]),
        helper.make_node("Max", ["norm.root", "norm.least"], ["norm.divisor"]),
        helper.make_node("Div", ["raw", "norm.divisor"], [OUTPUT]),
    ]
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes[: place + 1], *ends, *nodes[place + 1 :]])
    _save(bundle, model)
    _change_probes(bundle, "embeddings", normalize=True)


def _leave_prompts_out(bundle: Path) -> None:
    """Pool the tokens whose mask is 1, and let the network see those whose mask is 2 too, as an export does."""
    from onnx import helper, numpy_helper

    model = _load(bundle)
    graph = model.graph
    (pooled,) = (node for node in graph.node if node.op_type == "Cast" and node.output[0] == "whiten.value_0")
    for node in graph.node:
        node.input[:] = ["prompts.seen" if name == "attention_mask" else name for name in node.input]
    pooled.input[0] = "prompts.pooled"
    graph.initializer.append(numpy_helper.from_array(np.array(1, np.int64), "whiten.pooled"))
    graph.initializer.append(numpy_helper.from_array(np.array(1, np.int64), "whiten.token"))
    first = [
        helper.make_node("Equal", ["attention_mask", "whiten.pooled"], ["prompts.pooled"]),
        helper.make_node("Min", ["attention_mask", "whiten.token"], ["prompts.seen"]),
    ]
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*first, *nodes])
    _save(bundle, model)


def _change_probes(bundle: Path, name: str, normalize: bool = False) -> None:
    """Make an array of the probes, perhaps normalised, the vectors that the bundle is held against."""
    from safetensors.numpy import load_file, save

    probes = load_file(bundle / PROBE_VECTORS_FILE)
    vectors = probes[name]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    probes["embeddings"] = vectors / lengths if normalize else vectors.copy()
    rewrite_file(bundle, PROBE_VECTORS_FILE, save(probes))


def _remove(graph: "GraphProto", nodes: "Iterable[NodeProto]") -> None:
    for node in nodes:
        graph.node.remove(node)


def _load(bundle: Path) -> "ModelProto":
    import onnx

    return onnx.load(bundle / MODEL_FILE)


def _save(bundle: Path, model: "ModelProto") -> None:
    rewrite_file(bundle, MODEL_FILE, model.SerializeToString())
