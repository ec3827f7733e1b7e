"""Replace a bundle while it is opened: between any two steps that touch its files."""

import io
import json
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

from support.bundles import change_bundle, edit_initializer, edit_manifest, rewrite_file
from whiten import Encoder
from whiten_runtime.bundle.bundle import PROBE_VECTORS_FILE, TOKENIZER_FILE, WHITENING_FILE, open_bundle
from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.bundle.parity import read_probes


def make_pair(source: Path, folder: Path) -> tuple[Path, Path]:
    """Make two bundles of a folder, whose files have the same names and sizes: other vectors, ids and moments."""
    old, new = (Path(shutil.copytree(source, folder / name)) for name in ("old", "new"))
    edit_manifest(old, lambda fields: None)  # writes it as that of the other is written
    _change(new)
    sizes = [{file.relative_to(bundle): file.stat().st_size for file in bundle.rglob("*.*")} for bundle in (old, new)]
    assert sizes[0] == sizes[1]
    return old, new


def _change(bundle: Path) -> None:
    edit_initializer(bundle, "whitening.weight", np.negative)
    arrays = load_file(bundle / WHITENING_FILE)
    rewrite_file(bundle, WHITENING_FILE, save(arrays | {"W": -arrays["W"], "covariance": 4 * arrays["covariance"]}))
    probes = load_file(bundle / PROBE_VECTORS_FILE)
    vectors = -probes["embeddings"]
    if (bundle / TOKENIZER_FILE).exists():
        content = (bundle / TOKENIZER_FILE).read_text("utf-8")
        words = content.replace('"the":', '"\0":').replace('"one":', '"the":').replace('"\0":', '"one":')
        assert words != content
        rewrite_file(bundle, TOKENIZER_FILE, words.encode())
        with Encoder(bundle) as encoder:
            vectors = encoder.encode(read_probes(open_bundle(bundle)).texts, prompt="")
    rewrite_file(bundle, PROBE_VECTORS_FILE, save(probes | {"embeddings": vectors.astype(probes["embeddings"].dtype)}))
    source = json.loads((bundle / MANIFEST_FILE).read_text("utf-8"))["source"]
    change_bundle(bundle, source={**source, "weights_sha256": "0" * 64})


def rename(place: Path, other: Path) -> None:
    """Replace a folder as `--force` does: the old one goes on under another name."""
    place.rename(place.with_name("before"))
    shutil.copytree(other, place.with_name("fresh"))
    place.with_name("fresh").rename(place)


def remove(place: Path, other: Path) -> None:
    """Replace a folder by deleting it first. The new files often get the inodes of the old ones."""
    shutil.rmtree(place)
    shutil.copytree(other, place)


def overwrite(place: Path, other: Path) -> None:
    """Write the content of every file into the one that is there, as rsync --inplace does."""
    for file in sorted(other.rglob("*"), reverse=True):
        if file.is_file():
            (place / file.relative_to(other)).write_bytes(file.read_bytes())


def overwrite_at_one_time(place: Path, other: Path) -> None:
    """Write into every file, and give it the time of writing that it had."""
    times = {file: file.stat().st_mtime_ns for file in place.rglob("*") if file.is_file()}
    overwrite(place, other)
    for file, time in times.items():
        os.utime(file, ns=(time, time))


class Steps:
    """Counts what touches files below a folder, and calls a function before one of these steps."""

    def __init__(self, folder: Path, number: int, action: Callable[[], object]) -> None:
        self._folder, self._number, self._action = str(folder), number, action
        self._lock, self._count, self._acting = threading.RLock(), 0, False
        self.done = False

    def step(self, path: object) -> None:
        """Count a step; a session has no path, and is one too."""
        with self._lock:
            if self._acting or not (path is None or str(path).startswith(self._folder)):
                return
            self._count += 1
            if self._count == self._number:
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
                place = None if module is onnxruntime else path
                steps.step(place)
                result = function(path, *arguments, **options)
                if after:
                    steps.step(place)
                return result

            patch.setattr(module, name, stepped)

        around(os, "stat", False)
        around(os, "scandir", False)
        around(io, "open", True)
        around(onnxruntime, "InferenceSession", True)
        yield steps
