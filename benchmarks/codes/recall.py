"""Measure how many of the ten nearest by float32 are among the ten nearest by codes, in domain and on other texts."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten_export.pipeline.fit import fit_bundle
from whiten_export.pipeline.refit import refit_bundle
from whiten_runtime import DriftMonitor, Encoder
from whiten_runtime.files.corpus import Corpus
from whiten_whitening.codes.coder import Coder
from whiten_whitening.codes.fit import code_fits
from whiten_whitening.maps import WhiteningSpec

Vectors = NDArray[np.float32]

_FITTED, _SEARCHED, _QUERIES, _TOP = 8000, 20_000, 300, 10
_KINDS = ((8, None), (4, None), (4, 256), (2, None), (2, 256), (1, None))
SPECS = {
    "centred": WhiteningSpec("pca", beta=0.0),
    "soft": WhiteningSpec("pca", shrinkage=0.5),
    "full": WhiteningSpec(),
}


def recall_lines(bundle: Path, files: Sequence[Path], folder: Path) -> Iterator[str]:
    """Yield a table for each whitening that is fitted on a part of the first corpus."""
    corpora = {file.name.split(".")[0]: _shuffled(file) for file in files}
    first = next(iter(corpora))
    fitted, corpora[first] = corpora[first][:_FITTED], corpora[first][_FITTED:]
    (folder / "own.txt").write_text("\n".join(fitted) + "\n", "utf-8")
    statistics = fit_bundle(bundle, Corpus((str(folder / "own.txt"),), None, None))
    kinds = " | ".join(f"{bits} bits{f', {dims} dims' if dims else ''}" for bits, dims in _KINDS)
    yield f"| fitted on {first} | texts | {kinds} | 4 bits, 100 by signs | noise / expected, 4, 2, 1 bits |"
    yield "|---" * (4 + len(_KINDS)) + "|"
    for name, spec in SPECS.items():
        refit_bundle(bundle, statistics, spec, folder / name)
        with Encoder(folder / name) as encoder:
            for texts, sentences in corpora.items():
                vectors = encoder.encode(sentences[: _SEARCHED + _QUERIES])
                yield f"| {name} | {texts} | {_recalls(folder / name, vectors)} |"


def _recalls(bundle: Path, vectors: Vectors) -> str:
    queries, searched = vectors[:_QUERIES], vectors[_QUERIES:]
    units = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, searched)]
    nearest = np.argsort(-(units[0] @ units[1].T), axis=1, kind="stable")[:, :_TOP]
    cells = []
    for bits, dims in _KINDS:
        coder = Coder.of(bundle, bits, dims)
        cells.append(_share(nearest, coder.search(queries, coder.encode(searched), _TOP).rows))
    coder = Coder.of(bundle, 4)
    cells.append(_share(nearest, coder.search(queries, coder.encode(searched), _TOP, candidates=100).rows))
    monitor = DriftMonitor(bundle).update(searched)
    factors = ", ".join(f"{fit.noise / fit.expected:.2f}" for fit in code_fits(bundle, monitor))
    return " | ".join([*(f"{cell:.3f}" for cell in cells), factors])


def _share(wanted: NDArray[np.int64], found: NDArray[np.int64]) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(a) for a, b in zip(wanted, found, strict=True)]))


def _shuffled(file: Path) -> list[str]:
    sentences = list(dict.fromkeys(Corpus((str(file),), None, None)))
    random.Random(0).shuffle(sentences)
    return sentences
