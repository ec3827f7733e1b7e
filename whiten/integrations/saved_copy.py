"""Write the copy of a bundle that sentence-transformers saves, and read what it says besides the bundle."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec

from whiten_runtime.bundle.manifest import MANIFEST_FILE, Manifest, parse_manifest
from whiten_runtime.bundle.space import with_space
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import BundleError, whole_number
from whiten_runtime.files.replacing import replace_file, replacing
from whiten_runtime.inference.options import Prompts
from whiten_runtime.opened_bundle import bundle_of

LENGTH_FILE = "sentence_bert_config.json"
LENGTH = "max_seq_length"
_WRITTEN_BEFORE = "config_sentence_transformers.json"
"""File of the model as a whole, which sentence-transformers writes before it saves the modules."""


def save_copy(encoder: Encoder, max_seq_length: int, target: Path) -> None:
    """Copy the files of a bundle into a folder, with the prompts and the similarity that are saved there.

    Raises:
        IntegrityError: the bundle was replaced since it was opened; the copy cannot be used.
    """
    manifest = _with_settings(encoder.manifest, target)
    for name in (*manifest.files, MANIFEST_FILE):
        if name != _WRITTEN_BEFORE or not (target / name).exists():
            _copy(encoder.path / name, target / name)
    bundle_of(encoder).check_unchanged()
    if manifest is not encoder.manifest:
        replace_file(target / MANIFEST_FILE, manifest.to_json())
    settings = {LENGTH: max_seq_length, "do_lower_case": False}
    replace_file(target / LENGTH_FILE, (json.dumps(settings, indent=2, sort_keys=True) + "\n").encode())


def saved_length(bundle: Path) -> int | None:
    """Return the maximum length with which the model was saved; None for the bundle's own."""
    path = bundle / LENGTH_FILE
    if not path.is_file():
        return None
    try:
        length = json.loads(path.read_bytes()).get(LENGTH)
    except (ValueError, AttributeError, RecursionError):
        raise BundleError(f"{path}: is no object of JSON; copy the bundle again, or delete the file") from None
    return None if length is None else whole_number(f"{path}: {LENGTH}", length, 1)


def prompts_of(manifest: Manifest) -> dict[str, str]:
    """Return the prompts, with those of queries and documents, which sentence-transformers looks up by these names."""
    prompts = Prompts.of(manifest)
    return {**prompts.texts, "query": prompts.for_task("query"), "document": prompts.for_task("document")}


def _with_settings(manifest: Manifest, folder: Path) -> Manifest:
    """Return a manifest with the prompts and the similarity that sentence-transformers has saved in a folder.

    Raises:
        BundleError: the bundle cannot have them.
    """
    path = folder / _WRITTEN_BEFORE
    saved = json.loads(path.read_bytes()) if path.is_file() else {}
    changes: dict[str, Any] = {}
    if saved.get("prompts", prompts_of(manifest)) != prompts_of(manifest):
        changes["prompts"] = saved["prompts"]
    for name in ("default_prompt_name", "similarity_fn_name"):
        if name in saved and saved[name] != getattr(manifest, name):
            changes[name] = saved[name]
    if not changes:
        return manifest
    changed = msgspec.structs.replace(manifest, **changes)
    if changes.keys() != {"similarity_fn_name"}:
        changed = with_space(changed)
    return parse_manifest(changed.to_json(), folder / MANIFEST_FILE)


def _copy(source: Path, target: Path) -> None:
    """Copy a file under a temporary name, so that a process that has mapped an earlier one keeps it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and target.samefile(source):
        return
    with source.open("rb") as original, replacing(target) as copy:
        shutil.copyfileobj(original, copy)
