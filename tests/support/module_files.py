"""Folders of sentence-transformers with hand-written files, without a network and without PyTorch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

OLD = "sentence_transformers.models."


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")
    return path


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path)
    return path


def write_modules(root: Path, *kinds: str, first: str = "") -> Path:
    """Write modules.json: the first module in `first`, the others in 1_Kind, 2_Kind and so on.

    Args:
        root: folder of the model.
        kinds: names of classes; one with a dot is a whole class path.
        first: path of the first module.
    """
    listed = []
    for index, kind in enumerate(kinds):
        name = kind if "." in kind else OLD + kind
        path = first if index == 0 else f"{index}_{kind.rsplit('.', 1)[-1]}"
        listed.append({"idx": index, "name": str(index), "path": path, "type": name})
    write_json(root / "modules.json", listed)
    return root
