"""Editing bundles, as an accident or an attacker would."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whiten_runtime.bundle.bundle import MODEL_FILE, PROBE_VECTORS_FILE, WHITENING_FILE
from whiten_runtime.bundle.files import HASH_FIELD, with_own_hash
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.space import space_id


def copy_bundle(bundle: Path, target: Path) -> Path:
    return Path(shutil.copytree(bundle, target / "copy"))


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the fields of a manifest; one with a hash of its own gets the right one."""
    path = bundle / "whiten.json"
    fields = json.loads(path.read_text("utf-8"))
    change(fields)
    content = json.dumps(fields).encode()
    path.write_bytes(with_own_hash(content) if HASH_FIELD in fields else content)


def change_bundle(bundle: Path, **fields: Any) -> None:
    """Change fields of a manifest, and the id of its space with them.

    `whitening=None` takes the whitening out of the graph and the probes too; otherwise the graph stays as it is.
    """
    if fields.get("whitening", 0) is None:
        _remove_whitening(bundle)
    edit_manifest(bundle, lambda manifest: manifest.update(fields))
    manifest = read_manifest(bundle)
    if manifest.space is not None:
        edit_manifest(bundle, lambda fields: fields.update(space=space_id(manifest)))


def _remove_whitening(bundle: Path) -> None:
    """Remove the two nodes of a whitening that keeps the width; what followed them follows the pooling."""
    import onnx
    from safetensors.numpy import load_file, save

    model = onnx.load(bundle / MODEL_FILE)
    graph = model.graph
    (centre,) = (node for node in graph.node if list(node.input[1:]) == ["whitening.mean"])
    (turn,) = (node for node in graph.node if list(node.input[1:]) == ["whitening.weight"])
    before, after = centre.input[0], turn.output[0]
    for node in (centre, turn):
        graph.node.remove(node)
    for value in [one for one in graph.value_info if one.name == before]:
        graph.value_info.remove(value)
    for node in graph.node:
        node.input[:] = [after if name == before else name for name in node.input]
        node.output[:] = [after if name == before else name for name in node.output]
    for tensor in [one for one in graph.initializer if one.name.startswith("whitening.")]:
        graph.initializer.remove(tensor)
    rewrite_file(bundle, MODEL_FILE, model.SerializeToString())
    probes = load_file(bundle / PROBE_VECTORS_FILE)
    rewrite_file(bundle, PROBE_VECTORS_FILE, save(probes | {"embeddings": probes["unwhitened"].copy()}))
    (bundle / WHITENING_FILE).unlink()
    edit_manifest(bundle, lambda manifest: manifest["files"].pop(WHITENING_FILE))


def rewrite_file(bundle: Path, name: str, content: bytes) -> None:
    """Replace a file and make the manifest agree with it."""
    (bundle / name).write_bytes(content)
    record = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    edit_manifest(bundle, lambda manifest: manifest["files"].update({name: record}))


def scale_initializer(bundle: Path, name: str, factor: float) -> None:
    """Multiply an initialiser of the graph, and make the manifest agree with it."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(bundle / "onnx" / "model.onnx")
    (found,) = (one for one in model.graph.initializer if one.name == name)
    scaled = (numpy_helper.to_array(found) * factor).astype(numpy_helper.to_array(found).dtype)
    found.CopyFrom(numpy_helper.from_array(scaled, name))
    rewrite_file(bundle, "onnx/model.onnx", model.SerializeToString())


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by its POSIX path."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def contained(old: object, new: object) -> bool:
    """Return whether every field of an older manifest, as read from JSON, has the same value in a newer one."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and contained(value, new[key]) for key, value in old.items())
    return old == new
