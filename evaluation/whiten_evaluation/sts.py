"""Score semantic textual similarity by the papers' protocol, on the seven tasks as they are distributed."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_evaluation.embedding import Storage, TextVectors
from whiten_runtime.bundle.manifest import Manifest, read_manifest
from whiten_runtime.bundle.space import space_of
from whiten_runtime.errors import DataError, UsageError, kind_of_place
from whiten_runtime.files import judged as folders
from whiten_runtime.files.judged import read_pairs
from whiten_runtime.files.rows import WrongRowError, number_of, parse_rows, read_texts
from whiten_whitening.measures import cosines, ranks, spearman
from whiten_whitening.moments import Float64Array

SUBSETS: Mapping[str, tuple[str, ...]] = {
    "STS-B": ("sts-b",),
    "SICK-R": ("sickr",),
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("OnWN", "deft-forum", "deft-news", "headlines", "images", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
"""The tasks and their sub-datasets; the fourth of STS13, SMT, is not freely available, and no paper counts it."""

_ALONE = {
    "STS-B": ("sts-b-test.csv", "sts-test.csv"),
    "SICK-R": ("sickr-test.csv", "sick_test_annotated.txt", "sick.txt"),
}
"""Names, in lower case, of the files of tasks that are a single file: WhiteningBERT's, then the released ones."""

_SICK_COLUMNS = ("sentence_A", "sentence_B", "relatedness_score")
_YEAR = re.compile(r"(?:sts[-_ ]?(?:20)?|semeval[-_ ]?20|(?<![a-z0-9])20)(1[2-6])(?!\d)", re.IGNORECASE)
_TRAINING = re.compile(r"train|trial", re.IGNORECASE)


@dataclass(frozen=True)
class Subset:
    name: str  # such as "MSRpar"
    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: NDArray[np.float64]  # similarity of each pair as scored by people, [n]
    file: Path

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the first sentences of all pairs, then the second ones; repeated sentences are kept."""
        return self.first + self.second


@dataclass(frozen=True)
class Task:
    name: str
    subsets: tuple[Subset, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the sentences of all sub-datasets; repeated sentences are kept."""
        return tuple(text for subset in self.subsets for text in subset.texts)


@dataclass(frozen=True)
class StsData:
    tasks: tuple[Task, ...]  # complete tasks, in the order of `SUBSETS`
    absent: Mapping[str, tuple[str, ...]]  # incomplete tasks, with the names of the sub-datasets that were not found

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for task in self.tasks for text in task.texts))

    @property
    def complete(self) -> bool:
        return len(self.tasks) == len(SUBSETS)

    def missing(self) -> Iterator[str]:
        for name, subsets in self.absent.items():
            what = f" ({', '.join(subsets)})" if len(SUBSETS[name]) > 1 else ""
            part = "incomplete" if len(subsets) < len(SUBSETS[name]) else "absent"
            yield f"{name} is {part}: no file of it{what} was found"


def read_sts(directory: Path, names: Sequence[str] = tuple(SUBSETS), required: bool = True) -> StsData:
    """Read test sets from a directory and its subdirectories.

    Layouts: WhiteningBERT's (`sts12.MSRpar-test.csv`, `sts-b-test.csv`, `sickr-test.csv`), SemEval's
    (`STS.input.MSRpar.txt` and `STS.gs.MSRpar.txt` in a folder named after the year, or `STS2016.input...`; pairs
    without a score are left out), the STS benchmark's `sts-test.csv`, SICK's `SICK_test_annotated.txt` and `SICK.txt`.
    Where no task is there, that is an error if one is `required`.
    """
    if kind_of_place(directory) != "directory":
        raise UsageError(f"data '{directory}' is not a directory; name the folder of the STS files")
    files = list(files_below(directory))
    tasks, absent = [], {}
    for name in names:
        files_of = {subset: _find(name, subset, files) for subset in SUBSETS[name]}
        missing = tuple(subset for subset, file in files_of.items() if file is None)
        if missing:
            absent[name] = missing
        else:
            tasks.append(
                Task(name, tuple(_read(subset, file) for subset, file in files_of.items() if file is not None))
            )
    if not tasks and not required:
        return StsData((), {})
    if not tasks:
        raise UsageError(
            f"data '{directory}' holds no complete task of {', '.join(names)}; wanted files such as sts-b-test.csv, "
            "sts12.MSRpar-test.csv or STS12-en-test/STS.input.MSRpar.txt; call a file of your own pairs sts-test.csv"
        )
    return StsData(tuple(tasks), absent)


def files_below(directory: Path) -> Iterator[Path]:
    """Yield all files outside hidden folders, shallow ones first, in an order independent of the file system."""
    yield from sorted(folders.files_below(directory, (".",)), key=lambda path: (len(path.parts), str(path)))


def _find(task: str, subset: str, files: Iterable[Path]) -> Path | None:
    """Return the file of a sub-dataset; of SemEval's two files, that of the sentences."""
    if task in _ALONE:
        wanted = list(_ALONE[task])
        candidates = [(wanted.index(path.name.lower()), path) for path in files if path.name.lower() in wanted]
        return min(candidates, key=lambda item: item[0])[1] if candidates else None
    ours, theirs = f"{task}.{subset}-test.csv".lower(), re.compile(rf"STS(20\d\d)?\.input\.{re.escape(subset)}\.txt")
    official = None
    for path in files:
        if path.name.lower() == ours:
            return path
        if official is None and (match := theirs.fullmatch(path.name)) and _gold(path).is_file():
            year, below = _year(path)
            year = match[1][2:] if match[1] else year
            if f"STS{year}" == task and not any(map(_TRAINING.search, below)):
                official = path
    return official


def _year(path: Path) -> tuple[str | None, list[str]]:
    """Return the year in the name of the innermost folder that has one, such as STS12-en-test or sts2012.

    Return also the rest of this name, and the names of the folders below it: they tell training sets.
    """
    parts = path.absolute().parts[:-1]
    for index in reversed(range(len(parts))):
        if match := _YEAR.search(parts[index]):
            return match[1], [parts[index].replace(match[0], ""), *parts[index + 1 :]]
    return None, []


def _read(name: str, path: Path) -> Subset:
    if ".input." in path.name:
        rows = _read_semeval(path)
    elif path.name.lower().startswith("sick") and path.suffix == ".txt":
        rows = _read_sick(path)
    else:
        pairs = read_pairs(path)
        rows = list(zip(pairs.first, pairs.second, pairs.scores.tolist(), strict=True))
    if len(rows) < 2:
        raise DataError(f"{path}: holds {len(rows)} pairs with scores; wanted more")
    first, second, scores = zip(*rows, strict=True)
    return Subset(name, first, second, np.asarray(scores, np.float64), path)


def _gold(path: Path) -> Path:
    return path.with_name(path.name.replace(".input.", ".gs."))


def _read_semeval(path: Path) -> list[tuple[str, str, float]]:
    gold = _gold(path)
    sentences, scores = list(read_texts(path)), list(read_texts(gold))
    if len(sentences) != len(scores):
        raise DataError(f"{gold}: has {len(scores)} lines, but {path.name} has {len(sentences)}; wanted as many")
    rows = []
    for number, (line, text) in enumerate(zip(sentences, scores, strict=True), 1):
        if text.strip():
            parts, score = line.split("\t"), number_of(text)
            if len(parts) < 2:
                raise DataError(f"{path}: line {number} is {line[:80]!r}; wanted two sentences, separated by a tab")
            if score is None:
                raise DataError(f"{gold}: line {number} has the score {text[:80]!r}; wanted a number")
            rows.append((parts[0], parts[1], score))
    return rows


def _read_sick(path: Path) -> list[tuple[str, str, float]]:
    """Read SICK_test_annotated.txt, or the lines of the test set of SICK.txt, which has the column SemEval_set."""
    with path.open("rb") as stream:
        columns = (*_SICK_COLUMNS, "SemEval_set") if b"SemEval_set" in stream.readline() else _SICK_COLUMNS
        stream.seek(0)
        wanted = f"SICK's, with {', '.join(_SICK_COLUMNS)}"
        return [pair for _, pair in parse_rows(stream, str(path), "tsv", columns, wanted, _sick_pair)]


def _sick_pair(fields: list[str]) -> tuple[str, str, float] | None:
    """Return both sentences and the score of a line; None for one of another set."""
    first, second, text, *part = fields
    score = number_of(text)
    if score is None:
        raise WrongRowError(f"has the score {text[:80]!r}; wanted a number")
    return (first, second, score) if not part or part[0].strip().upper() == "TEST" else None


LEVEL = 0.95
"""Confidence level of the intervals."""

RESAMPLES = 1000
"""Resamples of the paired bootstrap that the intervals are of."""


class SubsetScore(msgspec.Struct, frozen=True, kw_only=True):
    """Spearman's correlation on one sub-dataset, times 100."""

    name: str
    pairs: int
    spearman: float


class TaskScore(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one task, times 100, averaged in the three ways of the literature."""

    name: str
    pairs: int
    mean: float
    """Unweighted mean of the sub-datasets' correlations, as in WhiteningBERT."""
    wmean: float
    """Mean of the sub-datasets' correlations, weighted by their numbers of pairs."""
    all: float
    """Correlation over the pairs of all sub-datasets together."""
    subsets: tuple[SubsetScore, ...]


class Interval(msgspec.Struct, frozen=True):
    low: float
    high: float


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of a row to the first one, times 100, with the interval of a paired bootstrap."""

    value: float
    low: float
    high: float
    certain: bool
    """Whether the interval excludes 0."""


class StsScore(msgspec.Struct, frozen=True, kw_only=True):
    bundle: str
    stored: str
    """How the vectors of both texts are stored: "float32" or "codes"."""
    bytes: int
    """Bytes of a vector."""
    space: str
    precision: str
    layers: tuple[int, ...]
    dimension: int
    tasks: tuple[TaskScore, ...]
    averages: dict[str, float]
    """Averages of "mean", "wmean" and "all" over the tasks."""
    differences: tuple[Difference, ...]
    """Difference of each task's mean to that of the first row; none for this row itself."""
    difference: Difference | None
    """Difference of the averages of the means; None for the first row itself."""


@dataclass(frozen=True)
class StsRow:
    """The cosines of a bundle, with its vectors stored in one way: [n] for each sub-dataset of each task."""

    bundle: str
    manifest: Manifest
    stored: str
    bytes: int
    cosines: Sequence[Sequence[NDArray[np.floating]]]


def sts_rows(data: StsData, name: str, bundle: Path, vectors: TextVectors, ways: Sequence[Storage]) -> list[StsRow]:
    """Return the cosines of a bundle's vectors, float32 [m, d], for each way to store them."""
    rows, width = [], vectors.vectors.shape[1]
    for way in ways:
        stored = replace(vectors, vectors=way.document(vectors.vectors))
        cosines_of = [
            [cosines(stored.of(subset.first), stored.of(subset.second)) for subset in task.subsets]
            for task in data.tasks
        ]
        rows.append(StsRow(name, read_manifest(bundle), way.name, way.bytes(width), cosines_of))
    return rows


def score_task(task: Task, similarities: Sequence[NDArray[np.floating]]) -> TaskScore:
    """Correlate similarities, [n] for each sub-dataset, with people's scores."""
    scores = [subset.scores for subset in task.subsets]
    correlations = [100 * spearman(mine, gold) for mine, gold in zip(similarities, scores, strict=True)]
    sizes = [len(gold) for gold in scores]
    return TaskScore(
        name=task.name,
        pairs=sum(sizes),
        mean=float(np.mean(correlations)),
        wmean=float(np.average(correlations, weights=sizes)),
        all=100 * spearman(np.concatenate(similarities), np.concatenate(scores)),
        subsets=tuple(
            SubsetScore(name=subset.name, pairs=size, spearman=score)
            for subset, size, score in zip(task.subsets, sizes, correlations, strict=True)
        ),
    )


def averages(tasks: Sequence[TaskScore]) -> dict[str, float]:
    return {kind: float(np.mean([getattr(task, kind) for task in tasks])) for kind in ("mean", "wmean", "all")}


def resampled(
    tasks: Sequence[Task],
    similarities: Sequence[Sequence[Sequence[NDArray[np.floating]]]],
    resamples: int,
    seed: int,
) -> Float64Array:
    """Return the scores of resampled pairs, times 100, [rows, tasks, resamples].

    The pairs of every sub-dataset are drawn with replacement, as many as there are; all rows see the same draws, so
    that differences between them are paired (Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 8).
    `similarities` are cosines of each row on each task, [n] for each sub-dataset.
    """
    draws = np.zeros((len(similarities), len(tasks), resamples))
    for index, task in enumerate(tasks):
        random = np.random.default_rng((seed, index))
        for place, subset in enumerate(task.subsets):
            columns = np.column_stack([subset.scores, *(row[index][place] for row in similarities)])
            for draw in range(resamples):
                drawn = columns[random.integers(len(columns), size=len(columns))]
                ranked = np.column_stack([ranks(column) for column in drawn.T])
                centred = ranked - ranked.mean(axis=0)
                norms = np.sqrt(np.square(centred).sum(axis=0))
                correlations = centred[:, 0] @ centred / np.where(norms * norms[0] > 0, norms * norms[0], np.inf)
                draws[:, index, draw] += 100 * correlations[1:] / len(task.subsets)
    return draws


def interval(samples: Float64Array) -> Interval:
    """Return the percentile interval of resampled values, [resamples]."""
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def score_sts(data: StsData, rows: Sequence[StsRow]) -> list[StsScore]:
    """Score rows on all tasks, and their differences to the first with the intervals of a paired bootstrap."""
    scored = [tuple(score_task(*pair) for pair in zip(data.tasks, row.cosines, strict=True)) for row in rows]
    draws: Sequence[Float64Array] = ()
    if len(rows) > 1:
        draws = list(resampled(data.tasks, [row.cosines for row in rows], RESAMPLES, seed=0))
    scores = []
    for index, (row, tasks) in enumerate(zip(rows, scored, strict=True)):
        behind = _differences(tasks, scored[0], draws[index] - draws[0]) if index else None
        scores.append(
            StsScore(
                bundle=row.bundle,
                stored=row.stored,
                bytes=row.bytes,
                space=space_of(row.manifest),
                precision=row.manifest.precision,
                layers=row.manifest.layers,
                dimension=row.manifest.dimension,
                tasks=tasks,
                averages=averages(tasks),
                differences=behind[:-1] if behind else (),
                difference=behind[-1] if behind else None,
            )
        )
    return scores


def _differences(tasks: Sequence[TaskScore], first: Sequence[TaskScore], draws: Float64Array) -> tuple[Difference, ...]:
    """Return the difference of each task's mean to the first row's, then that of their average.

    `draws` are the resampled differences, [tasks, resamples].
    """
    values = np.array([task.mean - other.mean for task, other in zip(tasks, first, strict=True)])
    average = averages(tasks)["mean"] - averages(first)["mean"]
    return (*map(difference_of, values.tolist(), draws), difference_of(average, draws.mean(axis=0)))


def difference_of(value: float, draws: Float64Array) -> Difference:
    """Return a difference with the interval of its resampled values, [resamples]."""
    bounds = interval(draws)
    return Difference(value=value, low=bounds.low, high=bounds.high, certain=bounds.low > 0 or bounds.high < 0)
