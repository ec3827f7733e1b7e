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

FRACTIONS = (1, 2 / 3, 1 / 3, 1 / 6)
"""Numbers of dimensions to try, as fractions of all, rounded to a multiple of 8."""

BITS = (4, 2, 1)


class CodeScore(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the score of one kind of code."""

    name: str
    """Kind: "float32", "int8" (a scale for each vector), "binary" (signs of the vectors as they are), "4 bits", ..."""
    dims: int
    """Number of coordinates."""
    bytes: int
    """Bytes of a vector."""
    beta: float | None
    """Exponent of the coder; None for kinds without one."""
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
    bits: Sequence[int] = BITS,
    dims: Sequence[int] = (),
    beta: float | None = None,
) -> tuple[CodeScore, ...]:
    """Score float32, int8 and signs, then codes of a bundle's coder if it stores moments, by the cosines of codes.

    Args:
        bundle: directory of the bundle.
        data: the tasks.
        vectors: the bundle's vectors of all sentences.
        bits: bits of a coordinate to try.
        dims: numbers of dimensions to try; none for `FRACTIONS`.
        beta: exponent of the coders; None for the bundle's own.

    Raises:
        UsageError: dims or bits that the bundle's coder cannot have.
    """
    found = [_scored(data, vectors, *plain) for plain in _plain(bundle, vectors.vectors)]
    if read_manifest(bundle).whitening is not None:
        for coder in _coders(bundle, vectors.vectors.shape[1], bits, dims, beta):
            decoded = coder.decode(coder.encode_codes(vectors.vectors))
            name = f"{coder.bits} bit{'s' if coder.bits > 1 else ''}"
            found.append(_scored(data, vectors, name, coder.bytes, coder.beta, decoded))
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


def _plain(bundle: Path, vectors: NDArray[np.float32]) -> Iterator[tuple[str, int, float | None, NDArray[np.float32]]]:
    """Yield name, bytes, exponent and vectors of the kinds that need no moments."""
    width = vectors.shape[1]
    yield "float32", 4 * width, None, vectors
    coder = Coder.of(bundle, 8)
    yield "int8", coder.bytes, None, coder.decode(coder.encode_codes(vectors))
    yield "binary", -(-width // 8), None, signs(vectors)


def _coders(bundle: Path, width: int, bits: Sequence[int], dims: Sequence[int], beta: float | None) -> Iterator[Coder]:
    if dims:
        wanted = list(dims)
    else:
        most = Coder.of(bundle, 4, None, beta).dims
        wanted = list(dict.fromkeys(min(most, max(8, 8 * round(width * part / 8))) for part in FRACTIONS))
    for each in bits:
        for count in wanted:
            yield Coder.of(bundle, each, count, beta)


def _scored(
    data: StsData, texts: TextVectors, name: str, size: int, beta: float | None, vectors: NDArray[np.float32]
) -> CodeScore:
    scores = score_sts(data, replace(texts, vectors=vectors), WhiteningSource())
    tasks = {task.name: task.mean for task in scores.tasks}
    if not tasks:
        raise UsageError("there is no task to score")
    return CodeScore(
        name=name,
        dims=vectors.shape[1],
        bytes=size,
        beta=beta,
        spearman=float(np.mean(list(tasks.values()))),
        tasks=tasks,
    )
