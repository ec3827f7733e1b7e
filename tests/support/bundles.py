"""Editing bundles, as an accident or an attacker would."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whiten_runtime.bundle.files import HASH_FIELD, with_own_hash
from whiten_runtime.bundle.manifest import Manifest


def copy_bundle(bundle: Path, target: Path) -> Path:
    return Path(shutil.copytree(bundle, target / "copy"))


def graph_bytes(manifest: Manifest) -> int:
    """Bytes of the graph and its weights."""
    return sum(record.bytes for name, record in manifest.files.items() if name.startswith("onnx/"))


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the fields of a manifest; one with a hash of its own gets the right one."""
    path = bundle / "whiten.json"
    fields = json.loads(path.read_text("utf-8"))
    change(fields)
    content = json.dumps(fields).encode()
    path.write_bytes(with_own_hash(content) if HASH_FIELD in fields else content)


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
