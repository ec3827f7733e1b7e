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

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_evaluation.embedding import TextVectors
from whiten_evaluation.tasks.classification_files import ClassificationTask, Split, TaskName
from whiten_runtime.errors import DataError
from whiten_runtime.ort.processor import default_threads
from whiten_whitening.moments import Float64Array
from whiten_whitening.similarity import cosines

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
