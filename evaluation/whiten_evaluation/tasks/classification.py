"""Classify frozen vectors by logistic regression, by the protocol of SentEval.

Conneau & Kiela, "SentEval" (2018), as in its code (senteval/tools/validation.py without PyTorch, kfold 10; binary.py,
trec.py, mrpc.py, sst.py):

- samples are sorted by number of words, then by class; this order decides which sample is in which fold;
- outer and inner folds are StratifiedKFold(10, shuffle=True, random_state=1111);
- MR, CR, SUBJ, MPQA: inner folds of each outer training part choose C among 2^-2..2^3; a model that is trained on the
  whole part is tested on the outer fold; the accuracy is the mean over outer folds;
- TREC, MRPC: folds of the training split choose C among 2^-1..2^5; SST5: the dev split chooses C among 2^-2..2^3; a
  model that is trained on the training split is tested on the official test split;
- C is chosen by percentages rounded to two decimals; the first of equal ones is taken;
- features are the vectors as given, neither standardised nor scaled; for a pair, [|u - v|, u * v].

Differences from SentEval: texts are used as in the files, not split into words and joined again; results are not
rounded; the regression is that of today's scikit-learn at its optimum (multinomial, intercept not penalised), not
liblinear's.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_evaluation.embedding import TextVectors, WhiteningSource, whitened
from whiten_evaluation.tasks.classification_files import ClassificationTask, Split
from whiten_runtime.errors import DataError
from whiten_runtime.ort.processor import default_threads
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningMap
from whiten_whitening.moments import Float64Array

FOLDS = 10
SEED = 1111
STRENGTHS = tuple(2.0**power for power in range(-2, 4))
STRENGTHS_WITHOUT_DEV = tuple(2.0**power for power in range(-1, 6))

_GRADIENT_TOLERANCE = 1e-6
_NEWTON_MOST = 2048
"""Largest number of weights for Newton's method; for more, the Hessian is too large to be worth it."""

Labels = NDArray[np.int64]
Samples = tuple[Float64Array, Labels]
_Rows = NDArray[np.int64]
_Each = Callable[[Callable[[_Rows], Any], Sequence[_Rows]], list[Any]]


@dataclass(frozen=True)
class ClassificationScore:
    """Holds the accuracy of one task.

    Attributes:
        task: name of the task.
        n: number of tested samples.
        accuracy: percentage of tested samples that were classified correctly; with outer folds, the mean over them.
        f1: F1 of class 1, as a percentage; None unless samples are pairs.
        strengths: the chosen C; with outer folds, one for each.
        folds: accuracies on the outer folds, as percentages; empty where the official test split is tested.
        majority: percentage of the most frequent class among tested samples: what always answering with it scores.
        seconds: time for training and testing, without embedding.
    """

    task: str
    n: int
    accuracy: float
    f1: float | None
    strengths: tuple[float, ...]
    folds: tuple[float, ...]
    majority: float
    seconds: float


def classify(
    task: ClassificationTask,
    vectors: TextVectors,
    whitening: WhiteningSource,
    threads: int | None = None,
    reporter: Reporter | None = None,
) -> ClassificationScore:
    """Train and test a classifier on a task.

    Args:
        task: the task, with its samples.
        vectors: vectors of all sentences of the task.
        whitening: whitening of the vectors; "target" is fitted on all sentences of the task, including those of the
            test split, as in WhiteningBERT.
        threads: number of threads; None for all usable CPUs.
        reporter: told about progress.

    Raises:
        UsageError: too few sentences to whiten.
        DataError: a class has too few samples to learn from.
    """
    _check_classes(task)
    started = time.monotonic()
    fitted = None
    if whitening.source == "target":
        fitted = vectors.fit(task.sentences, whitening.spec, task.name)
    train = features(task.train, vectors, fitted)
    count = len(task.classes)
    f1: float | None = None
    folds: tuple[float, ...] = ()
    with _threads(threads or default_threads(), reporter or Reporter()) as each:
        if task.test is None:
            y = train[1]
            folds, strengths = _nested_folds(train, count, each)
            accuracy = float(np.mean(folds))
        else:
            dev = features(task.dev, vectors, fitted) if task.dev else None
            strength, weights = _choose(train, count, STRENGTHS if dev else STRENGTHS_WITHOUT_DEV, dev, each)
            x, y = features(task.test, vectors, fitted)
            predicted = _predict(x, weights)
            strengths, accuracy = (strength,), _percentage(predicted, y)
            f1 = _f1(predicted, y) if task.pairs else None
    majority = 100 * float(np.bincount(y).max()) / len(y)
    return ClassificationScore(task.name, len(y), accuracy, f1, strengths, folds, majority, time.monotonic() - started)


def features(split: Split, vectors: TextVectors, fitted: WhiteningMap | None) -> Samples:
    """Return features [n, d], for pairs [n, 2 d], and classes [n], sorted as in SentEval: by words, then by class."""
    lengths = [np.array([len(text.split()) for text in texts]) for texts in (split.second, split.texts) if texts]
    order = np.lexsort([split.labels, *lengths])
    x = whitened(vectors.of(split.texts), fitted)
    if split.second:
        other = whitened(vectors.of(split.second), fitted)
        x = np.hstack([np.abs(x - other), x * other])
    return x[order], split.labels[order]


def _check_classes(task: ClassificationTask) -> None:
    wanted = 1 if task.dev else FOLDS if task.test else FOLDS + 2
    counts = np.bincount(task.train.labels, minlength=len(task.classes))
    for name, samples in zip(task.classes, counts, strict=True):
        if samples < wanted:
            raise DataError(f"{task.name}: class {name} has {samples} samples to learn from; wanted {wanted} or more")


def _nested_folds(samples: Samples, count: int, each: _Each) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the accuracy on each outer fold, as percentages, and the C that its inner folds chose."""
    x, y = samples

    def test(fold: _Rows) -> tuple[float, float]:
        rest = np.delete(x, fold, axis=0), np.delete(y, fold)
        strength, weights = _choose(rest, count, STRENGTHS, None, _one_by_one)
        return strength, _percentage(_predict(x[fold], weights), y[fold])

    found = each(test, _folds(samples))
    return tuple(accuracy for _, accuracy in found), tuple(strength for strength, _ in found)


def _choose(
    samples: Samples, count: int, strengths: Sequence[float], dev: Samples | None, each: _Each
) -> tuple[float, Float64Array]:
    """Return the best C on `dev`, or on folds of the samples, and the weights fitted with it on all samples."""
    x, y = samples
    folds = [] if dev else _folds(samples)
    judged = [dev] if dev else [(x[fold], y[fold]) for fold in folds]
    held_out = [*folds, np.empty(0, np.int64)]
    by_strength = _paths(samples, held_out, strengths, count, each)
    scores = [
        np.mean([_percentage(_predict(a, w), b) for (a, b), w in zip(judged, weights, strict=False)])
        for weights in by_strength
    ]
    best = int(np.argmax(np.round(scores, 2)))
    return strengths[best], by_strength[best][-1]


def _paths(
    samples: Samples, held_out: Sequence[_Rows], strengths: Sequence[float], count: int, each: _Each
) -> list[list[Float64Array]]:
    """Return weights [d + 1, classes or 1], intercepts last, for each C and each set of rows held out.

    Each fit starts from the weights of the previous C.
    """
    x, y = samples
    newton = count == 2 and x.shape[1] <= _NEWTON_MOST  # converges fastest when there are few weights
    solver = "newton-cholesky" if newton else "lbfgs"

    def path(rows: _Rows) -> list[Float64Array]:
        model = _regression(solver)
        rest = np.delete(x, rows, axis=0), np.delete(y, rows)
        return [_fit(model.set_params(C=strength), *rest) for strength in strengths]

    return [list(weights) for weights in zip(*each(path, held_out), strict=True)]


def _regression(solver: str) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(solver=solver, tol=_GRADIENT_TOLERANCE, max_iter=100_000, warm_start=True)


def _fit(model: Any, x: Float64Array, y: Labels) -> Float64Array:
    model.fit(x, y)
    return np.vstack([model.coef_.T, model.intercept_])


def _predict(x: Float64Array, weights: Float64Array) -> Labels:
    logits = x @ weights[:-1] + weights[-1]
    return np.asarray(logits.argmax(axis=1) if logits.shape[1] > 1 else logits[:, 0] > 0, np.int64)


def _folds(samples: Samples) -> list[_Rows]:
    """Return the rows of each fold."""
    from sklearn.model_selection import StratifiedKFold

    return [rows for _, rows in StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(*samples)]


def _percentage(predicted: Labels, wanted: Labels) -> float:
    return 100 * float((predicted == wanted).mean())


def _f1(predicted: Labels, wanted: Labels) -> float:
    hits = int((predicted & wanted).sum())
    return 200 * hits / max(1, int(predicted.sum() + wanted.sum()))


def _one_by_one(run: Callable[[_Rows], Any], parts: Sequence[_Rows]) -> list[Any]:
    return [run(part) for part in parts]


@contextmanager
def _threads(count: int, reporter: Reporter) -> Iterator[_Each]:
    """Map over folds in threads; matrix products in each use one thread, as nested threads slow each other down."""
    from threadpoolctl import threadpool_limits

    def each(run: Callable[[_Rows], Any], parts: Sequence[_Rows]) -> list[Any]:
        found = []
        with ThreadPoolExecutor(min(count, len(parts))) as pool, reporter.bar("folds", len(parts)) as advance:
            for result in pool.map(run, parts):
                found.append(result)
                advance(1)
        return found

    with threadpool_limits(1):
        yield each
