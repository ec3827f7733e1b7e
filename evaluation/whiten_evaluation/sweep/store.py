"""Store the vectors of every layer for a set of texts on disk, in parts, so that an interrupted pass can resume."""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from whiten_evaluation.sweep.graph import LayerGraph
from whiten_export.graph.pooling import LAYERS_OUTPUT
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.errors import DataError, WhitenError
from whiten_runtime.files.replacing import replace_file, written_as
from whiten_runtime.ort.session import SessionOptions

_PART_BYTES = 64_000_000
PART_TEXTS = 1024
"""Largest number of texts whose vectors are written together: an interruption loses no more."""

_SPARE = 1.05
_ELSEWHERE = "another --cache"
_VECTORS, _PROGRESS = "vectors.npy", "progress.json"


class _Progress(msgspec.Struct, frozen=True):
    """Holds the number of texts that are done, in the order in which they are embedded."""

    done: int


@dataclass(frozen=True)
class LayerVectors:
    """Holds the vectors of distinct texts.

    Attributes:
        graph: graph that computed the vectors.
        rows: row of each text in `table`.
        table: memory-mapped vectors, float32 [poolings, layers, texts, d].
    """

    graph: LayerGraph
    rows: dict[str, int]
    table: NDArray[np.float32]

    def of(self, pooling: Pooling, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Read the vectors of some texts in all layers into memory, [layers, n, d]."""
        table = self.table[self.graph.poolings.index(pooling)]
        return np.stack([np.asarray(layer[rows]) for layer in table])


def texts_digest(texts: Sequence[str]) -> str:
    """Return the SHA-256 over distinct texts, each preceded by its length."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def embed_layers(
    graph: LayerGraph,
    texts: Sequence[str],
    folder: Path,
    options: SessionOptions,
    advance: Callable[[int], object],
    part_texts: int = PART_TEXTS,
) -> LayerVectors:
    """Embed the texts that are not in the folder yet, and open the vectors of all texts.

    Args:
        graph: graph of all layers.
        texts: distinct texts, the same as when the folder was begun.
        folder: folder of the vectors; created if it does not exist.
        options: options of the session.
        advance: called with the number of texts done since the last call; first with those found in the folder.
        part_texts: largest number of texts whose vectors are written together.

    Raises:
        WhitenError: the disk has too little free space, or the folder cannot be written.
        DataError: a vector is not finite.
    """
    with written_as(folder, _ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True)
    path, progress = folder / _VECTORS, folder / _PROGRESS
    shape = (len(graph.poolings), len(graph.layers), len(texts), graph.width)
    done = _done(path, progress, shape)
    if not done:
        with written_as(path, _ELSEWHERE):
            progress.unlink(missing_ok=True)  # as it would be wrong about the new table
            _check_room(folder, 4 * int(np.prod(shape)))
            open_memmap(path, "w+", np.float32, shape).flush()
            _take_room(path)
    advance(done)
    # Texts of similar length are neighbours, so that a part has little padding, and the slowest come first.
    order = np.array(sorted(range(len(texts)), key=lambda row: (-len(texts[row]), row)), np.intp)
    if done < len(texts):
        table = open_memmap(path, "r+")
        step = int(np.clip(_PART_BYTES // (4 * shape[0] * shape[1] * shape[3]), 16, part_texts))
        with graph.embedder(options) as embedder:
            for start in range(done, len(texts), step):
                rows = order[start : start + step]
                part = [texts[row] for row in rows]
                vectors = embedder.embed(part, embedder.whole(LAYERS_OUTPUT), advance)
                if not np.isfinite(vectors).all():
                    worst = part[int(np.isfinite(vectors).all(axis=1).argmin())]
                    raise DataError(f"a layer's vector is not finite, that of {worst[:80]!r}; check the model")
                table[:, :, rows] = graph.split(vectors)
                with written_as(path, _ELSEWHERE):
                    table.flush()
                _keep(progress, start + len(rows))
        del table
    rows_of = {text: row for row, text in enumerate(texts)}
    return LayerVectors(graph, rows_of, open_memmap(path, "r"))


def _done(path: Path, progress: Path, shape: tuple[int, ...]) -> int:
    """Return the number of texts that are stored already; 0 if the table is missing or has another shape."""
    try:
        done = msgspec.json.decode(progress.read_bytes(), type=_Progress).done
        found = open_memmap(path, "r").shape == shape
    except (OSError, ValueError, msgspec.DecodeError):
        return 0
    return done if found and 0 <= done <= shape[2] else 0


def _keep(progress: Path, done: int) -> None:
    replace_file(progress, msgspec.json.encode(_Progress(done)), _ELSEWHERE)


def _check_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size * _SPARE:
        raise WhitenError(
            f"{folder}: the vectors of all layers take {size / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free; "
            "name another --cache, fewer --layers or one --pooling"
        )


def _take_room(path: Path) -> None:
    """Allocate the disk space of a mapped file now, where possible: later, a full disk could not be reported."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
