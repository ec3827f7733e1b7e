"""Compute curves for notable combinations of layers: against dimensions kept, shrinkage, and the exponent β.

Each combination has one decomposition into eigenvectors for each set of sentences that it is whitened on. Shrinkage and
β change only the factors of the coordinates along them (`scale_factors`), so that the cosines of a pair at all values
are one product: those of coordinates, [d], with squared factors, [d, values].
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from whiten_evaluation.sweep.combinations import Combination
from whiten_evaluation.sweep.loading import load_task
from whiten_evaluation.sweep.results import Curve, FitCurve, Score, Varied, Whitened, average
from whiten_evaluation.sweep.scoring import TaskVectors
from whiten_evaluation.sweep.store import LayerVectors
from whiten_evaluation.tasks.sts_files import Task
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.errors import UsageError
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningSpec, check_sample_count, fit_map, scale_factors, spectrum
from whiten_whitening.moments import Float64Array, Moments

SHRINKAGES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9)
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)

_SPECS = (
    *(WhiteningSpec(shrinkage=value) for value in SHRINKAGES),
    *(WhiteningSpec(beta=value) for value in BETAS),
)

_STEP, _POINTS = 16, 48
"""Smallest step between the dimensions of a curve, and the approximate number of its points."""

_PAIRS_AT_ONCE = 1024


@dataclass(frozen=True)
class Spectrum:
    """Holds the decomposition of the covariance of n vectors.

    Attributes:
        n: number of vectors.
        mean: their mean, [d].
        eigenvalues: eigenvalues, descending, [d].
        basis: eigenvectors, [d, d].
    """

    n: int
    mean: Float64Array
    eigenvalues: Float64Array
    basis: Float64Array

    @classmethod
    def of(cls, moments: Moments) -> "Spectrum":
        """Decompose the covariance of vectors."""
        return cls(moments.n, moments.mean, *spectrum(moments.covariance))


def dimension_curves(
    vectors: LayerVectors, tasks: Sequence[Task], scores: tuple[Score, ...], report: Reporter
) -> Iterator[Curve]:
    """Yield curves of quality against dimensions kept, for notable combinations of the first pooling."""
    pooling, width = vectors.graph.poolings[0], vectors.graph.width
    wanted = notable(scores, pooling, vectors.graph.layers, ("target",))
    step = max(_STEP, width // _POINTS // _STEP * _STEP)
    dimensions = tuple(sorted({*range(_STEP, width, step), width}))
    totals = {found: np.zeros(len(dimensions)) for found in wanted}
    with report.bar("tasks", len(tasks)) as advance:
        for task in tasks:
            data = load_task(vectors, task, pooling)
            for found in wanted:
                totals[found] += scores_by_dimension(data, found, dimensions) / len(tasks)
            advance(1)
    for found, what in wanted.items():
        averages = tuple(totals[found].tolist())
        yield Curve(pooling=pooling, layers=found, what=what, dimensions=dimensions, averages=averages)


def fit_curves(
    vectors: LayerVectors,
    corpus: LayerVectors | None,
    tasks: Sequence[Task],
    scores: tuple[Score, ...],
    report: Reporter,
) -> Iterator[FitCurve]:
    """Yield curves of quality against shrinkage and β, on target and on a corpus, for notable combinations.

    Args:
        vectors: vectors of the tasks' texts.
        corpus: vectors of the corpus; None for no curves on it.
        tasks: tasks whose sentences were embedded.
        scores: scores that say which combinations are notable, of the first pooling.
        report: told about progress.
    """
    pooling = vectors.graph.poolings[0]
    wanted = notable(scores, pooling, vectors.graph.layers, ("target", "corpus"))
    on_corpus = {} if corpus is None else {layers: _corpus_spectrum(corpus, pooling, layers) for layers in wanted}
    kinds: tuple[Whitened, ...] = ("target",) if corpus is None else ("target", "corpus")
    totals = {(layers, kind): np.zeros(len(_SPECS)) for layers in wanted for kind in kinds}
    with report.bar("tasks", len(tasks)) as advance:
        for task in tasks:
            data = load_task(vectors, task, pooling)
            for layers, kind in totals:
                fitted = on_corpus[layers] if kind == "corpus" else Spectrum.of(data.moments(data.sum_of(layers)))
                totals[layers, kind] += scores_by_fit(data, layers, fitted, _SPECS) / len(tasks)
            advance(1)
    for (layers, kind), total in totals.items():
        yield from _named_curves(pooling, layers, wanted[layers], kind, total)


def scores_by_dimension(data: TaskVectors, layers: Combination, dimensions: Sequence[int]) -> Float64Array:
    """Return the scores of a combination whitened to its k leading dimensions, for each k: columns are nested.

    Raises:
        UsageError: all vectors are equal.
    """
    vectors = data.sum_of(layers)
    fitted = fit_map(data.moments(vectors), WhiteningSpec())
    white = (vectors.astype(np.float64) - fitted.mean) @ fitted.weight
    columns = np.asarray(dimensions) - 1
    return _scores(data, white, lambda products: np.cumsum(products, axis=1)[:, columns])


def scores_by_fit(
    data: TaskVectors, layers: Combination, fitted: Spectrum, specs: Sequence[WhiteningSpec]
) -> Float64Array:
    """Return the scores of a combination whitened by pca with each shrinkage and β.

    A score is NaN where `check_sample_count` refuses the number of sentences.

    Args:
        data: vectors of the task.
        layers: layers whose vectors are summed.
        fitted: decomposition of the sums that the whitening is fitted on.
        specs: whitenings; their shrinkage is a number or "none", and they keep all dimensions.
    """
    projected = (data.sum_of(layers).astype(np.float64) - fitted.mean) @ fitted.basis
    weights = [0.0 if spec.shrinkage == "none" else float(spec.shrinkage) for spec in specs]
    factors = [scale_factors(fitted.eigenvalues, alpha, spec.beta) for alpha, spec in zip(weights, specs, strict=True)]
    squares = np.square(factors).T
    found = _scores(data, projected, lambda products: products @ squares)
    enough = [_enough(fitted, spec) for spec in specs]
    return np.where(enough, found, np.nan)


def notable(
    scores: Sequence[Score], pooling: Pooling, layers: tuple[int, ...], kinds: Sequence[Whitened]
) -> dict[Combination, str]:
    """Return the combinations that get a curve, each with the reason, by the first of some whitenings with scores."""
    known = [score for score in scores if score.pooling == pooling and score.average is not None]
    white = next((some for kind in kinds if (some := [score for score in known if score.whitening == kind])), [])
    choices = (
        ("the paper's choice", [score for score in white if score.layers == (1, layers[-1])]),
        ("the top layer", [score for score in white if score.layers == (layers[-1],)]),
        ("the lookup table", [score for score in white if score.layers == (0,)]),
        ("the best layer", [score for score in white if len(score.layers) == 1]),
        ("the best of all", white),
    )
    wanted: dict[Combination, str] = {}
    for what, some in choices:
        if some:
            wanted.setdefault(max(some, key=average).layers, what)
    return wanted


def _scores(data: TaskVectors, vectors: Float64Array, reduce: Callable[[Float64Array], Float64Array]) -> Float64Array:
    """Return a score for each column that `reduce` makes of products of coordinates: [n, d] to [n, c]."""
    cosines = []
    for a, b in zip(data.first, data.second, strict=True):
        parts = [
            np.concatenate(
                [
                    reduce(vectors[u[start : start + _PAIRS_AT_ONCE]] * vectors[v[start : start + _PAIRS_AT_ONCE]])
                    for start in range(0, len(u), _PAIRS_AT_ONCE)
                ]
            )
            for u, v in ((a, b), (a, a), (b, b))
        ]
        norms = np.sqrt(parts[1] * parts[2])
        cosines.append(parts[0] / np.where(norms > 0, norms, np.inf))
    return np.array([data.score_cosines([part[:, index] for part in cosines]) for index in range(cosines[0].shape[1])])


def _enough(fitted: Spectrum, spec: WhiteningSpec) -> bool:
    try:
        check_sample_count(fitted.n, len(fitted.mean), spec)
    except UsageError:
        return False
    return True


def _corpus_spectrum(corpus: LayerVectors, pooling: Pooling, layers: Combination) -> Spectrum:
    table = corpus.table[corpus.graph.poolings.index(pooling)]
    vectors = np.sum([table[corpus.graph.layers.index(layer)] for layer in layers], axis=0)
    return Spectrum.of(Moments.of(vectors))


def _named_curves(
    pooling: Pooling, layers: Combination, what: str, kind: Whitened, averages: Float64Array
) -> Iterator[FitCurve]:
    start = 0
    varieties: tuple[tuple[Varied, tuple[float, ...]], ...] = (("shrinkage", SHRINKAGES), ("beta", BETAS))
    for varied, values in varieties:
        found = averages[start : start + len(values)].tolist()
        start += len(values)
        yield FitCurve(
            pooling=pooling,
            layers=layers,
            what=what,
            whitening=kind,
            varied=varied,
            values=values,
            averages=tuple(None if np.isnan(value) else value for value in found),
        )
