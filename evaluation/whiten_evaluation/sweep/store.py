"""Every layer's vectors of a set of texts, on disk: made in parts, each of which is there for good."""

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
from whiten_export.graph.head import LAYERS_OUTPUT
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.errors import DataError, WhitenError
from whiten_runtime.ort.session import SessionOptions

_PART_BYTES, _PART_TEXTS = 64_000_000, 1024
_SPARE = 1.05
_VECTORS, _PROGRESS = "vectors.npy", "progress.json"


class _Progress(msgspec.Struct, frozen=True):
    """How many texts are done, in the order in which they are embedded."""

    done: int


@dataclass(frozen=True)
class LayerVectors:
    """Vectors of distinct texts.

    Attributes:
        graph: what gave them.
        rows: of each text.
        table: float32 [poolings, layers, texts, d], mapped.
    """

    graph: LayerGraph
    rows: dict[str, int]
    table: NDArray[np.float32]

    def of(self, pooling: Pooling, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """All layers' vectors of some texts, [layers, n, d], in memory."""
        table = self.table[self.graph.poolings.index(pooling)]
        return np.stack([np.asarray(layer[rows]) for layer in table])


def texts_digest(texts: Sequence[str]) -> str:
    """SHA-256 over distinct texts, each with its length before it."""
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
) -> LayerVectors:
    """Embed the texts that are not in the folder yet, and open what is there.

    Args:
        graph: of all layers.
        texts: distinct; the same as when the folder was begun.
        folder: made if it is not there.
        options: how the session is created.
        advance: told how many texts were done since it was last called, those found in the folder first.

    Raises:
        WhitenError: the disk has too little room.
        OSError: the folder cannot be written.
        DataError: a vector is not finite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, progress = folder / _VECTORS, folder / _PROGRESS
    shape = (len(graph.poolings), len(graph.layers), len(texts), graph.width)
    done = _done(path, progress, shape)
    if not done:
        progress.unlink(missing_ok=True)  # before there is a table that it says something wrong of
        _check_room(folder, 4 * int(np.prod(shape)))
        open_memmap(path, "w+", np.float32, shape).flush()
        _take_room(path)
    advance(done)
    # Texts of like length are neighbours, so that a part has little padding, and the slowest come first.
    order = np.array(sorted(range(len(texts)), key=lambda row: (-len(texts[row]), row)), np.intp)
    if done < len(texts):
        table = open_memmap(path, "r+")
        step = int(np.clip(_PART_BYTES // (4 * shape[0] * shape[1] * shape[3]), 16, _PART_TEXTS))
        with graph.embedder(options) as embedder:
            for start in range(done, len(texts), step):
                rows = order[start : start + step]
                part = [texts[row] for row in rows]
                vectors = embedder.embed(part, embedder.whole(LAYERS_OUTPUT), advance)
                if not np.isfinite(vectors).all():
                    worst = part[int(np.isfinite(vectors).all(axis=1).argmin())]
                    raise DataError(f"a layer's vector is not finite, that of {worst[:80]!r}; check the model")
                table[:, :, rows] = graph.split(vectors)
                table.flush()
                _keep(progress, start + len(rows))
        del table
    rows_of = {text: row for row, text in enumerate(texts)}
    return LayerVectors(graph, rows_of, open_memmap(path, "r"))


def _done(path: Path, progress: Path, shape: tuple[int, ...]) -> int:
    """Texts that a folder holds already; 0 for one that is not of this shape."""
    try:
        done = msgspec.json.decode(progress.read_bytes(), type=_Progress).done
        found = open_memmap(path, "r").shape == shape
    except (OSError, ValueError, msgspec.DecodeError):
        return 0
    return done if found and 0 <= done <= shape[2] else 0


def _keep(progress: Path, done: int) -> None:
    temporary = progress.with_suffix(".partial")
    temporary.write_bytes(msgspec.json.encode(_Progress(done)))
    temporary.replace(progress)


def _check_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size * _SPARE:
        raise WhitenError(
            f"{folder}: the vectors of all layers take {size / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free; "
            "name another --cache, fewer --layers or one --pooling"
        )


def _take_room(path: Path) -> None:
    """Have the disk give a mapped file all its room now, where it can: later there would be no one to tell."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
