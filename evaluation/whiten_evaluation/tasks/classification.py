"""Classify frozen vectors by logistic regression, by the protocol of SentEval; decide entailment without training.

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

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_evaluation.embedding import TextVectors, WhiteningSource
from whiten_evaluation.tasks.classification_files import ClassificationTask, Split
from whiten_runtime.errors import DataError
from whiten_runtime.ort.processor import default_threads
from whiten_whitening.maps import WhiteningMap, whitened
from whiten_whitening.moments import Float64Array
from whiten_whitening.similarity import cosines

FOLDS = 10
SEED = 1111
STRENGTHS = tuple(2.0**power for power in range(-2, 4))
STRENGTHS_WITHOUT_DEV = tuple(2.0**power for power in range(-1, 6))

_TOLERANCE = 1e-6
_NEWTON_MOST = 2048
"""Largest number of weights for Newton's method; for more, the Hessian is too large to be worth it."""


@dataclass(frozen=True)
class ClassificationScore:
    """The accuracy of one task, as percentages."""

    task: str
    n: int  # tested samples
    accuracy: float  # with outer folds, the mean over them
    f1: float | None  # of class 1; None unless samples are pairs
    strengths: tuple[float, ...]  # the chosen C; with outer folds, one for each
    folds: tuple[float, ...]  # accuracies on the outer folds; empty where the official test split is tested
    majority: float  # share of the most frequent class: what always answering with it scores
    seconds: float  # of training and testing, without embedding


@dataclass(frozen=True)
class EntailmentScore:
    """The accuracy of decisions about entailment, as percentages; `entailed` is how often it was decided."""

    n: int
    accuracy: float
    majority: float
    entailed: float


def classify(
    task: ClassificationTask, vectors: TextVectors, whitening: WhiteningSource, threads: int | None = None
) -> ClassificationScore:
    """Train and test a classifier on a task.

    The whitening "task" is fitted on all sentences of the task, also those of the test split, as in WhiteningBERT.
    """
    from joblib import parallel_config
    from sklearn.metrics import accuracy_score, f1_score
    from sklearn.model_selection import PredefinedSplit, StratifiedKFold, cross_validate
    from threadpoolctl import threadpool_limits

    _check_classes(task)
    started = time.monotonic()
    fitted = vectors.fit(task.sentences, whitening.spec, task.name) if whitening.source == "task" else None
    x, y = features(task.train, vectors, fitted)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)
    accuracies: tuple[float, ...] = ()
    f1 = None
    # Threads share the vectors; matrix products in each use one thread, as nested threads slow each other down.
    with parallel_config("threading", n_jobs=threads or default_threads()), threadpool_limits(1):
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
                other, labels = features(task.dev, vectors, fitted)
                split = PredefinedSplit(np.r_[np.full(len(y), -1), np.zeros(len(labels), int)])
                model = _regression(STRENGTHS, split, x, len(task.classes), refit=False)
                model.fit(np.vstack([x, other]), np.r_[y, labels])
            x, y = features(task.test, vectors, fitted)
            predicted = model.predict(x)
            accuracy, strengths = 100 * float(accuracy_score(y, predicted)), (_strength(model),)
            f1 = 100 * float(f1_score(y, predicted, zero_division=0.0)) if task.pairs else None
    majority = 100 * float(np.bincount(y).max()) / len(y)
    seconds = time.monotonic() - started
    return ClassificationScore(task.name, len(y), accuracy, f1, strengths, accuracies, majority, seconds)


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


def features(split: Split, vectors: TextVectors, fitted: WhiteningMap | None) -> tuple[Float64Array, NDArray[np.int64]]:
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


def score_entailment(
    pairs: Split, vectors: TextVectors, whitening: WhiteningSource, threshold: float = 0.5
) -> EntailmentScore:
    """Decide entailment where a cosine is above a threshold: WhiteningBERT (Huang et al. 2021), appendix A.2.

    The threshold is used as given and never tuned; the whitening "task" is fitted on both columns.
    """
    fitted = vectors.fit(pairs.sentences, whitening.spec, "RTE") if whitening.source == "task" else None
    decided = cosines(*(whitened(vectors.of(texts), fitted) for texts in (pairs.texts, pairs.second))) > threshold
    share = float(pairs.labels.mean())
    return EntailmentScore(
        n=len(decided),
        accuracy=100 * float((decided == pairs.labels).mean()),
        majority=100 * max(share, 1 - share),
        entailed=100 * float(decided.mean()),
    )
