"""Say in sentences what a sweep found, from what, and how."""

from collections.abc import Iterator

from whiten_evaluation.sweep.results import (
    NEAR,
    FitCurve,
    Score,
    Sweep,
    Whitened,
    average,
    layers_text,
    named_layers,
    worthwhile,
)
from whiten_evaluation.sweep.speed import ROUNDS

_LONG: dict[Whitened, str] = {
    "none": "not whitened",
    "target": "whitened on target",
    "corpus": "whitened on the corpus",
}


def summary(sweep: Sweep) -> str:
    """Return what was swept: layers, poolings, tasks, and what the whitenings are fitted on."""
    absent = f" ({', '.join(sweep.absent)} were not there)" if sweep.absent else ""
    corpus = (
        f" Corpus: whitened, fitted once for all tasks on {sweep.corpus_sentences:,} evenly spaced sentences of "
        f"{sweep.corpus}; for single layers, pairs and the best combinations."
        if sweep.corpus
        else ""
    )
    return (
        f"{sweep.width} dimensions, layers {layers_text(sweep.layers)}, {', '.join(sweep.poolings)} pooling, at most "
        f"{sweep.max_seq_length} tokens; {sweep.sentences:,} sentences of {', '.join(sweep.tasks)}{absent}. Spearman's "
        "correlation of cosines with people's scores, times 100: mean over the sub-datasets of a task, then over "
        f"{sweep.average_of}. Target: whitened, fitted once for each task on all its sentences (WhiteningBERT's "
        f"setting).{corpus}"
    )


def findings(sweep: Sweep) -> list[str]:
    """Return the main findings, one sentence each."""
    return list(_findings(sweep))


def how(sweep: Sweep) -> str:
    """Return how the combinations were searched and the speeds measured, and how long it took."""
    searched = layers_text(sweep.searched)
    sought = (
        f"all combinations of layers {searched} were scored"
        if sweep.exhaustive
        else f"larger combinations of layers {searched} are extensions of the best smaller ones (beam search)"
    )
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in sweep.seconds.items())
    return (
        f"Every single layer, every two, and {sought}. Bold: the best row of a pooling. Speeds are medians of {ROUNDS} "
        "interleaved rounds on the machine that made this report, float32, whitening not included, with the lowest and "
        f"the highest beside them. Time: {times}. Weights: SHA-256 {sweep.weights_sha256}."
    )


def _findings(sweep: Sweep) -> Iterator[str]:
    best = max((score for score in sweep.scores if score.average is not None), key=average, default=None)
    if best is None:
        yield "Nothing could be scored: every text has the same vector in every layer."
        return
    yield f"Best of {len(sweep.scores):,}: {_named(best)}."
    for kind in sweep.kinds[1:]:
        yield from _effects(sweep, kind)
    for kind in sweep.kinds[1:]:
        yield from _shrinkage(sweep, kind)
    if (found := worthwhile(sweep.depths)) and all(depth.texts_per_second for depth in sweep.depths):
        (depth, score), top = found, sweep.depths[-1]
        rate = (depth.texts_per_second or 0) / (top.texts_per_second or 1)
        yield (
            f"Depth {depth.layer} is worth its cost: {_named(score)}, within {NEAR} of the best of any depth, at "
            f"{rate:.2f} times the speed of all {top.layer} blocks."
        )


def _effects(sweep: Sweep, kind: Whitened) -> Iterator[str]:
    gains = {layer: gain for layer in sweep.layers if (gain := _gain(sweep, layer, kind))}
    fitted = {"target": "Whitening on target", "corpus": "Whitening on the corpus"}[kind]
    for sign, verb in ((1, "lifts"), (-1, "lowers")):
        some = {layer: abs(gain) for layer, gain in gains.items() if gain * sign > 0}
        if some:
            sizes = sorted({f"{gain:.2f}" for gain in some.values()}, key=float)
            by = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
            yield f"{fitted} {verb} {named_layers(tuple(some))} ({sweep.poolings[0]}) by {by}."


def _shrinkage(sweep: Sweep, kind: Whitened) -> Iterator[str]:
    """Yield how much the best shrinkage gives the best combination on which a whitening was fitted."""
    curves = [curve for curve in sweep.fits if (curve.whitening, curve.varied) == (kind, "shrinkage")]
    known = [(curve, top) for curve in curves if (top := _top(curve)) is not None and curve.averages[0] is not None]
    if known:
        curve, (value, most) = max(known, key=lambda found: found[1][1])
        full = curve.averages[0] or 0.0
        yield (
            f"Shrinkage {value:g} is best for {named_layers(curve.layers)}, {_LONG[kind]}: {most:.2f}, against "
            f"{full:.2f} in full."
        )


def _top(curve: FitCurve) -> tuple[float, float] | None:
    known = [(mean, -value) for value, mean in zip(curve.values, curve.averages, strict=True) if mean is not None]
    if not known:
        return None
    most, negative = max(known)
    return -negative, most


def _gain(sweep: Sweep, layer: int, kind: Whitened) -> float:
    found = [
        next((average(score) for score in sweep.of(sweep.poolings[0], one, 1) if score.layers == (layer,)), None)
        for one in ("none", kind)
    ]
    return 0.0 if found[0] is None or found[1] is None else found[1] - found[0]


def _named(score: Score) -> str:
    return f"{named_layers(score.layers)}, {score.pooling}, {_LONG[score.whitening]}, {average(score):.2f}"
