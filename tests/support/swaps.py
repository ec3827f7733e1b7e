"""Replace a bundle while it is opened: between any two steps that touch its files."""

import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file, save

from support.bundles import change_bundle, edit_initializer, rewrite_file
from whiten import Encoder
from whiten_runtime.bundle.bundle import PROBE_VECTORS_FILE, TOKENIZER_FILE, WHITENING_FILE
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.parity import read_probes
from whiten_runtime.bundle.bundle import open_bundle


def make_other(bundle: Path) -> Path:
    """Turn a bundle into another one, whose files have the same names and sizes: other vectors, ids and moments."""
    source = read_manifest(bundle).source
    edit_initializer(bundle, "whitening.weight", np.negative)
    arrays = load_file(bundle / WHITENING_FILE)
    rewrite_file(bundle, WHITENING_FILE, save(arrays | {"W": -arrays["W"], "covariance": 4 * arrays["covariance"]}))
    probes = load_file(bundle / PROBE_VECTORS_FILE)
    if (bundle / TOKENIZER_FILE).exists():
        content = (bundle / TOKENIZER_FILE).read_text("utf-8")
        swapped = content.replace('"the":', '"\0":').replace('"one":', '"the":').replace('"\0":', '"one":')
        assert swapped != content
        rewrite_file(bundle, TOKENIZER_FILE, swapped.encode())
        with Encoder(bundle) as encoder:
            texts = read_probes(open_bundle(bundle)).texts
            vectors = encoder.encode(texts, prompt="")
    else:
        vectors = -probes["embeddings"]
    rewrite_file(bundle, PROBE_VECTORS_FILE, save(probes | {"embeddings": vectors.astype(probes["embeddings"].dtype)}))
    digits = "0" * len(source.weights_sha256)
    change_bundle(bundle, source={**_fields(bundle)["source"], "weights_sha256": digits})
    return bundle


def _fields(bundle: Path) -> dict[str, Any]:
    import json

    fields: dict[str, Any] = json.loads((bundle / "whiten.json").read_text("utf-8"))
    return fields


def rename(place: Path, other: Path) -> None:
    """Replace a folder as `--force` does: the old one goes on under another name."""
    place.rename(place.with_name("before"))
    shutil.copytree(other, place.with_name("fresh"))
    place.with_name("fresh").rename(place)


def remove(place: Path, other: Path) -> None:
    """Replace a folder by deleting it first."""
    shutil.rmtree(place)
    shutil.copytree(other, place)


def overwrite(place: Path, other: Path) -> None:
    """Write the content of every file into the one that is there, as rsync --inplace does."""
    for file in sorted(other.rglob("*"), reverse=True):
        if file.is_file():
            (place / file.relative_to(other)).write_bytes(file.read_bytes())


SWAPS = (rename, remove, overwrite)


class Steps:
    """Counts what touches files below a folder, and calls a function before one of these steps."""

    def __init__(self, folder: Path, number: int, action: Callable[[], object]) -> None:
        self._folder, self._number, self._action = str(folder), number, action
        self._lock, self.count, self.done = threading.RLock(), 0, False
        self._acting = False

    def step(self, path: object = None) -> None:
        """Count a step; one of the session of a graph has no path."""
        with self._lock:
            if self._acting or not (path is None or str(path).startswith(self._folder)):
                return
            self.count += 1
            if self.count == self._number:
                self._acting = True
                self._action()
                self._acting, self.done = False, True


@contextmanager
def swapping(place: Path, number: int, action: Callable[[], object]) -> Iterator[Steps]:
    """Call a function once before the step of this number that touches files below a folder, in whatever thread.

    Steps are the look-up, opening and listing of a file, and the creation of a session; an opening and a creation have
    a step after them too.
    """
    steps = Steps(place, number, action)
    with pytest.MonkeyPatch.context() as patch:

        def around(module: Any, name: str, after: bool) -> None:
            function = getattr(module, name)

            def stepped(path: Any = None, *arguments: Any, **options: Any) -> Any:
                of = None if name == "InferenceSession" else path
                steps.step(of)
                result = function(path, *arguments, **options)
                if after:
                    steps.step(of)
                return result

            patch.setattr(module, name, stepped)

        around(os, "stat", False)
        around(os, "scandir", False)
        around(io, "open", True)
        around(onnxruntime, "InferenceSession", True)
        yield steps
