"""Made results of a sweep, for what is drawn and written of them."""

from typing import Any

from whiten_evaluation.sweep.combinations import all_combinations
from whiten_evaluation.sweep.curves import BETAS, SHRINKAGES
from whiten_evaluation.sweep.results import Curve, Depth, FitCurve, Score, Sweep, Whitened, average

TASKS = ("STS-B", "STS12")


def made_score(pooling: Any, whitening: Whitened, layers: tuple[int, ...], *tasks: float | None) -> Score:
    """A score with its average over the tasks."""
    known = [task for task in tasks if task is not None]
    mean = sum(known) / len(known) if len(known) == len(tasks) else None
    return Score(pooling=pooling, whitening=whitening, layers=layers, tasks=tasks, average=mean)


def made_sweep(count: int = 5, corpus: bool = True, few: bool = False, **changes: Any) -> Sweep:
    """A sweep of which layer 0 says nothing with cls; with `few`, nothing is whitened on target."""
    layers = tuple(range(count))
    combinations = (
        all_combinations(layers) if count <= 6 else [(layer,) for layer in layers] + [layers[1:], layers[::2]]
    )
    kinds: tuple[Whitened, ...] = ("none", "target", "corpus") if corpus else ("none", "target")
    scores = []
    for pooling in ("mean", "cls"):
        for index, kind in enumerate(kinds):
            for found in combinations:
                value = 50.0 + 3 * index + sum(found) + len(found) / 8 - (pooling == "cls") * 10
                empty = (pooling == "cls" and found == (0,)) or (few and kind == "target")
                scores.append(made_score(pooling, kind, found, *([None] * 2 if empty else [value, value + 1])))
    top = max((score for score in scores if score.pooling == "mean"), key=average)
    curves = () if few else (curve_of(top.layers), curve_of(layers[1:]))
    fits = tuple(
        FitCurve(
            pooling="mean",
            layers=top.layers,
            what="the best of all",
            whitening=kind,
            varied=varied,
            values=values,
            averages=tuple(None if few and kind == "target" else 60 + value for value in values),
        )
        for kind in kinds[1:]
        for varied, values in (("shrinkage", SHRINKAGES), ("beta", BETAS))
    )
    depths = tuple(
        Depth(layer=layer, texts_per_second=900 / (layer + 1), spread=(800 / (layer + 1), 990 / (layer + 1)), best=top)
        for layer in layers
    )
    made: dict[str, Any] = {
        "model": "made & named <so>",
        "checkpoint": None,
        "weights_sha256": "0" * 64,
        "layers": layers,
        "poolings": ("mean", "cls"),
        "width": 32,
        "max_seq_length": 48,
        "tasks": TASKS,
        "absent": {},
        "sentences": 400,
        "task_sentences": (24, 200) if few else (200, 200),
        "corpus": "builtin:made" if corpus else None,
        "corpus_sentences": 320 if corpus else 0,
        "searched": layers,
        "exhaustive": True,
        "scores": tuple(scores),
        "curves": curves,
        "fits": fits,
        "depths": depths,
        "seconds": {"embed": 1.0},
    }
    return Sweep(**(made | changes))


def curve_of(layers: tuple[int, ...]) -> Curve:
    """A curve over dimensions."""
    dimensions, averages = (16, 24, 32), (50.0, 60.0, 55.0)
    return Curve(pooling="mean", layers=layers, what="the best of all", dimensions=dimensions, averages=averages)
