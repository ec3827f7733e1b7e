"""Editing bundles, as an accident or an attacker would."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from whiten_runtime.bundle.bundle import MODEL_FILE, PROBE_VECTORS_FILE, TOKENIZER_FILE, WHITENING_FILE
from whiten_runtime.bundle.files import HASH_FIELD, with_own_hash
from whiten_runtime.bundle.graph import UNWHITENED_OUTPUT
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.space import space_id


def copy_bundle(bundle: Path, target: Path, **fields: Any) -> Path:
    """Copy a bundle into a folder, with fields of its manifest changed as by `change_bundle`."""
    copy = Path(shutil.copytree(bundle, target / "copy"))
    if fields:
        change_bundle(copy, **fields)
    return copy


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the fields of a manifest; one with a hash of its own gets the right one."""
    path = bundle / "whiten.json"
    fields = json.loads(path.read_text("utf-8"))
    change(fields)
    content = json.dumps(fields).encode()
    path.write_bytes(with_own_hash(content) if HASH_FIELD in fields else content)


def change_bundle(bundle: Path, **fields: Any) -> None:
    """Change fields of a manifest, and the id of its space with them.

    `whitening=None` takes the whitening out of the vectors and the probes too; otherwise the graph stays as it is.
    """
    if fields.get("whitening", 0) is None:
        _remove_whitening(bundle)
    edit_manifest(bundle, lambda manifest: manifest.update(fields))
    manifest = read_manifest(bundle)
    if manifest.space is not None:
        edit_manifest(bundle, lambda fields: fields.update(space=space_id(manifest)))


def _remove_whitening(bundle: Path) -> None:
    """Let the graph subtract nothing and multiply by the identity, for a whitening that keeps the width."""
    from safetensors.numpy import load_file, save

    edit_initializer(bundle, "whitening.mean", np.zeros_like)
    edit_initializer(bundle, "whitening.weight", lambda weight: np.eye(len(weight), dtype=weight.dtype))
    probes = load_file(bundle / PROBE_VECTORS_FILE)
    rewrite_file(bundle, PROBE_VECTORS_FILE, save(probes | {"embeddings": probes["unwhitened"].copy()}))
    (bundle / WHITENING_FILE).unlink()
    edit_manifest(bundle, lambda manifest: manifest["files"].pop(WHITENING_FILE))


def rewrite_file(bundle: Path, name: str, content: bytes) -> None:
    """Replace a file and make the manifest agree with it."""
    (bundle / name).write_bytes(content)
    record = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    edit_manifest(bundle, lambda manifest: manifest["files"].update({name: record}))


def edit_graph(bundle: Path, change: Callable[[Any], object]) -> None:
    """Change the graph, an onnx.ModelProto, and make the manifest agree with it."""
    import onnx

    model = onnx.load(bundle / MODEL_FILE)
    change(model)
    rewrite_file(bundle, MODEL_FILE, model.SerializeToString())


def add_unwhitened_output(bundle: Path) -> None:
    """Let the graph of an older bundle give its vectors before whitening too, as those of today do."""

    def edit(model: Any) -> None:
        named = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
        model.graph.output.append(named[UNWHITENED_OUTPUT])

    edit_graph(bundle, edit)


def edit_initializer(bundle: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Replace an array of the graph with what a function gives for it, and make the manifest agree with it."""
    from onnx import numpy_helper

    def edit(model: Any) -> None:
        (found,) = (one for one in model.graph.initializer if one.name == name)
        array = numpy_helper.to_array(found)
        found.CopyFrom(numpy_helper.from_array(np.asarray(change(array.copy()), array.dtype), name))

    edit_graph(bundle, edit)


def add_token_without_row(bundle: Path, content: str) -> None:
    """Add a special token whose id is beyond the table of embeddings to a tokenizer: the graph fails on it."""
    described = json.loads((bundle / TOKENIZER_FILE).read_text("utf-8"))
    token = {"id": 10_000_000, "content": content, "single_word": False, "lstrip": False, "rstrip": False}
    described["added_tokens"].append(token | {"normalized": False, "special": True})
    described["model"]["vocab"][content] = token["id"]
    rewrite_file(bundle, TOKENIZER_FILE, json.dumps(described).encode())


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by its POSIX path."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def stored_fields(bundle: Path) -> dict[str, Any]:
    """Return the fields of a golden bundle's manifest, but for its hash and what was always so in format 1."""
    fields: dict[str, Any] = json.loads((bundle / "whiten.json").read_text("utf-8"))
    del fields["manifest_sha256"]
    assert fields.pop("vectors") == "float32"
    assert fields.pop("outputs") in ("whitened", "both")
    for record in filter(None, (fields["parity"], fields.get("published"))):
        assert record.pop("stepped") is None
    return fields


def contained(old: object, new: object) -> bool:
    """Return whether every field of an older manifest, as read from JSON, has the same value in a newer one."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and contained(value, new[key]) for key, value in old.items())
    return old == new
