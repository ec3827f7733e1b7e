"""Editing bundles, as an accident or an attacker would."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whiten_runtime.bundle.manifest import Manifest


def copy_bundle(bundle: Path, target: Path) -> Path:
    return Path(shutil.copytree(bundle, target / "copy"))


def graph_bytes(manifest: Manifest) -> int:
    """Bytes of the graph and its weights."""
    return sum(record.bytes for name, record in manifest.files.items() if name.startswith("onnx/"))


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = bundle / "whiten.json"
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")


def rewrite_file(bundle: Path, name: str, content: bytes) -> None:
    """Replace a file and make the manifest agree with it."""
    (bundle / name).write_bytes(content)
    record = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    edit_manifest(bundle, lambda manifest: manifest["files"].update({name: record}))
