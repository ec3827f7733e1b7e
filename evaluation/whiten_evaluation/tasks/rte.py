"""Decide textual entailment without training: WhiteningBERT (Huang et al. 2021), appendix A.2, dev split of RTE."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten_evaluation.embedding import TextVectors, WhiteningSource, whitened
from whiten_evaluation.tasks.classification_files import lines_of, malformed
from whiten_evaluation.tasks.finding import files_below
from whiten_runtime.errors import DataError, UsageError
from whiten_whitening.similarity import cosines

FILE = "dev.tsv"
LABELS = ("not_entailment", "entailment")

_COLUMNS = ("sentence1", "sentence2", "label")


@dataclass(frozen=True)
class EntailmentPairs:
    """Holds n pairs of sentences.

    Attributes:
        first: premise of each pair.
        second: hypothesis of each pair.
        entailed: whether the premise entails the hypothesis, bool [n].
        file: file that the pairs were read from.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    entailed: NDArray[np.bool_]
    file: Path

    @property
    def majority(self) -> float:
        """Return the percentage of the more frequent answer: the accuracy of always giving that answer."""
        share = float(self.entailed.mean())
        return 100 * max(share, 1 - share)


@dataclass(frozen=True)
class EntailmentScore:
    """Holds the accuracy of decisions about entailment.

    Attributes:
        n: number of pairs.
        accuracy: percentage of pairs on which the decision agrees with people's.
        majority: percentage of the more frequent answer, the baseline.
        entailed: percentage of pairs that were decided to be entailment.
    """

    n: int
    accuracy: float
    majority: float
    entailed: float


def read_entailment(folder: Path) -> EntailmentPairs:
    """Read the dev split from the dev.tsv of a directory or one of its subdirectories.

    Of several such files, one with "rte" in its path below the directory is preferred.

    Raises:
        UsageError: not a directory, or no such file in it.
        DataError: the file lacks a column or has no pairs, or one of its lines is not a pair.
    """
    if not folder.is_dir():
        raise UsageError(f"'{folder}' is not a directory; wanted one with the {FILE} of RTE")
    paths = [path for path in files_below(folder) if path.name == FILE]
    if not paths:
        raise UsageError(f"'{folder}' has no {FILE}; wanted that of RTE, with columns {', '.join(_COLUMNS)}")
    return _read(
        min(paths, key=lambda path: ("rte" not in str(path.relative_to(folder)).lower(), len(path.parts), path))
    )


def score_entailment(
    pairs: EntailmentPairs, vectors: TextVectors, whitening: WhiteningSource, threshold: float = 0.5
) -> EntailmentScore:
    """Decide entailment for pairs whose cosine is above a threshold, and score the decisions.

    Args:
        pairs: pairs to decide.
        vectors: vectors of their sentences.
        whitening: whitening of the vectors; "target" is fitted on both columns.
        threshold: the threshold, used as given and never tuned.

    Raises:
        UsageError: too few sentences to whiten.
    """
    fitted = None
    if whitening.source == "target":
        fitted = vectors.fit(pairs.first + pairs.second, whitening.spec, "RTE")
    decided = cosines(*(whitened(vectors.of(texts), fitted) for texts in (pairs.first, pairs.second))) > threshold
    return EntailmentScore(
        n=len(decided),
        accuracy=100 * float((decided == pairs.entailed).mean()),
        majority=pairs.majority,
        entailed=100 * float(decided.mean()),
    )


def _read(path: Path) -> EntailmentPairs:
    header, *lines = lines_of(path) or [""]
    names = header.split("\t")
    if not set(_COLUMNS) <= set(names):
        raise malformed(path, 1, header, f"the header of RTE, with columns {', '.join(_COLUMNS)} separated by tabs")
    places = [names.index(name) for name in _COLUMNS]
    rows = []
    for number, line in enumerate(lines, 2):
        row = line.split("\t")
        if len(row) != len(names) or row[places[2]] not in LABELS:
            wanted = f"{len(names)} columns separated by tabs, the label being one of {', '.join(LABELS)}"
            raise malformed(path, number, line, wanted)
        rows.append([row[place].strip() for place in places])
    if not rows:
        raise DataError(f"{path}: has no pairs; wanted lines with {', '.join(names)}")
    first, second, labels = zip(*rows, strict=True)
    return EntailmentPairs(first, second, np.array([label == LABELS[1] for label in labels]), path)
