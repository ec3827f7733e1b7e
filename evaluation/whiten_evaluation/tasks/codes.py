"""Score codes of a few bytes on the similarity tasks, and find those that no other beats in bytes and score."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_evaluation.embedding import TextVectors, WhiteningSource
from whiten_evaluation.tasks.sts import score_sts
from whiten_evaluation.tasks.sts_files import StsData
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.errors import UsageError
from whiten_whitening.codes.coder import Coder

SIZES = (16, 32, 48, 64, 96, 128, 192)
"""Bytes of a code to try, as far as the vectors have dimensions for them."""


class CodeScore(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the score of one kind of code."""

    name: str
    """Kind: "float32", "int8" (a scale for each vector), "binary" (signs of the vectors as they are), "codes"."""
    dims: int
    """Number of coordinates."""
    bytes: int
    """Bytes of a vector."""
    spearman: float
    """Mean of the tasks, times 100; each task's mean over its sub-datasets."""
    tasks: dict[str, float]
    """Each task's mean, times 100."""
    front: bool = False
    """Whether no other kind has a higher score in as few bytes."""


def score_codes(
    bundle: Path,
    data: StsData,
    vectors: TextVectors,
    sizes: Sequence[int] = SIZES,
) -> tuple[CodeScore, ...]:
    """Score float32, int8 and signs, then codes of a bundle's coder if it stores moments, by the cosines of codes.

    Args:
        bundle: directory of the bundle.
        data: the tasks.
        vectors: the bundle's vectors of all sentences.
        sizes: bytes of a code to try; of `SIZES`, those that the bundle's coder can have.

    Raises:
        UsageError: more bytes than the bundle's coder can have.
    """
    found = [_scored(data, vectors, *plain) for plain in _plain(vectors.vectors)]
    if read_manifest(bundle).whitening is not None:
        width = vectors.vectors.shape[1]
        for size in sizes if sizes is not SIZES else [size for size in SIZES if 2 * size <= width]:
            coder = Coder.of(bundle, size)
            found.append(_scored(data, vectors, "codes", size, coder.decode(coder.encode_codes(vectors.vectors))))
    return with_front(found)


def with_front(found: Sequence[CodeScore]) -> tuple[CodeScore, ...]:
    """Mark the kinds that no other has beaten: none has a higher score in as few bytes, or as high a one in fewer."""

    def beaten(one: CodeScore) -> bool:
        return any(
            other.spearman >= one.spearman
            and other.bytes <= one.bytes
            and (other.spearman, -other.bytes) != (one.spearman, -one.bytes)
            for other in found
        )

    return tuple(msgspec.structs.replace(one, front=not beaten(one)) for one in found)


def signs(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 for coordinates above 0 and -1 for the rest, as sentence-transformers' binary quantisation does."""
    return np.where(vectors > 0, np.float32(1), np.float32(-1))


def _plain(vectors: NDArray[np.float32]) -> Iterator[tuple[str, int, NDArray[np.float32]]]:
    """Yield name, bytes and vectors of the kinds that need no moments."""
    width = vectors.shape[1]
    steps = np.maximum(np.abs(vectors).max(axis=1, keepdims=True) / np.float32(127), np.finfo(np.float32).tiny)
    yield "float32", 4 * width, vectors
    yield "int8", width + 4, np.rint(vectors / steps) * steps
    yield "binary", -(-width // 8), signs(vectors)


def _scored(data: StsData, texts: TextVectors, name: str, size: int, vectors: NDArray[np.float32]) -> CodeScore:
    scores = score_sts(data, replace(texts, vectors=vectors), WhiteningSource())
    tasks = {task.name: task.mean for task in scores.tasks}
    if not tasks:
        raise UsageError("there is no task to score")
    return CodeScore(
        name=name,
        dims=vectors.shape[1],
        bytes=size,
        spearman=float(np.mean(list(tasks.values()))),
        tasks=tasks,
    )
