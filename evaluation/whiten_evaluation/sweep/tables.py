"""Make the tables of a sweep's report: their cells, which rows are the best, and why a cell is empty."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from whiten_evaluation.sweep.combinations import Combination
from whiten_evaluation.sweep.results import Score, Sweep, Whitened, average, layers_text, named_layers
from whiten_evaluation.sweep.wording import NAMES
from whiten_runtime.bundle.manifest import Pooling

EMPTY = "-"
"""Content of a cell without a value."""


@dataclass(frozen=True)
class Row:
    """Holds the cells of a row, and whether it is the best of its pooling."""

    cells: tuple[str, ...]
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Holds a table, with sentences that say why cells are empty."""

    header: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def whitenings_table(sweep: Sweep, combinations: Sequence[tuple[Pooling, Combination]]) -> Table:
    """Return a row for each combination, with its average under each whitening side by side."""
    known = {(score.pooling, score.whitening, score.layers): score for score in sweep.scores}
    rows = []
    for pooling, layers in combinations:
        found = [known.get((pooling, kind, layers)) for kind in sweep.kinds]
        value = max((average(score) for score in found if score is not None), default=float("-inf"))
        cells = (layers_text(layers), pooling, *(_cell(None if score is None else score.average) for score in found))
        rows.append((pooling, value, cells))
    header = ("layers", "pooling", *(NAMES[kind] for kind in sweep.kinds))
    shown = [known[key] for kind in sweep.kinds for p, c in combinations if (key := (p, kind, c)) in known]
    return Table(header, tuple(_marked(rows)), tuple(explained(sweep, shown)))


def tasks_table(sweep: Sweep, combinations: Sequence[tuple[Pooling, Combination]]) -> Table:
    """Return a row for each combination and whitening, with the score of each task."""
    wanted = set(combinations)
    shown = [score for score in sweep.scores if (score.pooling, score.layers) in wanted]
    place = {pair: index for index, pair in enumerate(combinations)}
    shown.sort(key=lambda score: (place[score.pooling, score.layers], sweep.kinds.index(score.whitening)))
    rows = [
        (
            score.pooling,
            average(score),
            (
                layers_text(score.layers),
                score.pooling,
                NAMES[score.whitening],
                *map(_cell, (score.average, *score.tasks)),
            ),
        )
        for score in shown
    ]
    header = ("layers", "pooling", "whitening", "average", *sweep.tasks)
    return Table(header, tuple(_marked(rows)), tuple(explained(sweep, shown)))


def depths_table(sweep: Sweep) -> Table:
    """Return a row for each depth, with its speed and the spread of the measurements."""
    rows: list[tuple[str, float, tuple[str, ...]]] = []
    for depth in sweep.depths:
        speed, spread = EMPTY, EMPTY
        if depth.texts_per_second is not None and depth.spread is not None:
            speed, spread = f"{depth.texts_per_second:,.0f}", f"{depth.spread[0]:,.0f} to {depth.spread[1]:,.0f}"
        best = depth.best
        found = (layers_text(best.layers), NAMES[best.whitening], _cell(best.average)) if best else (EMPTY,) * 3
        rows.append(("", average(best) if best else float("-inf"), (str(depth.layer), speed, spread, *found)))
    notes = []
    if any(depth.texts_per_second is None for depth in sweep.depths):
        notes.append("No speed: it was not measured (--no-speed).")
    if any(depth.best is None for depth in sweep.depths):
        notes.append(
            f"No best layers: up to that depth, all texts have the same vector with {sweep.poolings[0]} pooling."
        )
    header = ("depth", "texts/s", "lowest to highest", "best layers", "whitening", "average")
    return Table(header, tuple(_marked(rows)), tuple(notes))


def singles(sweep: Sweep) -> list[tuple[Pooling, Combination]]:
    """Return every single layer of each pooling."""
    return [(pooling, (layer,)) for pooling in sweep.poolings for layer in sweep.layers]


def best_pairs(sweep: Sweep, most: int = 5) -> list[tuple[Pooling, Combination]]:
    """Return the pairs that are among the best `most` of a whitening, for each pooling, the best ones first."""
    found: dict[tuple[Pooling, Combination], float] = {}
    for pooling in sweep.poolings:
        for kind in sweep.kinds:
            for score in sorted(sweep.of(pooling, kind, 2), key=average, reverse=True)[:most]:
                key = pooling, score.layers
                found[key] = max(found.get(key, float("-inf")), average(score))
    return sorted(found, key=lambda key: (sweep.poolings.index(key[0]), -found[key]))


def best_of_sizes(sweep: Sweep) -> list[tuple[Pooling, Combination]]:
    """Return the best combination of each size and whitening, for each pooling, those of fewer layers first."""
    found = {
        (pooling, best.layers)
        for pooling in sweep.poolings
        for kind in sweep.kinds
        for size in sweep.sizes()
        if (best := sweep.best(pooling, kind, size)) is not None
    }
    return sorted(found, key=lambda key: (sweep.poolings.index(key[0]), len(key[1]), key[1]))


def explained(sweep: Sweep, scores: Sequence[Score]) -> Iterator[str]:
    """Yield in words why scores have no average."""
    without = {(score.pooling, score.whitening, score.layers) for score in scores if score.average is None}
    for pooling in sweep.poolings:
        alike = [layers for some, kind, layers in sorted(without) if (some, kind) == (pooling, "none")]
        if alike:
            named = ", ".join(named_layers(layers) for layers in alike)
            yield (
                f"No value for {named} with {pooling} pooling: every text has the same vector there, so that "
                "there is nothing to compare or to whiten."
            )
        without -= {(pooling, kind, layers) for layers in alike for kind in sweep.kinds}
    kinds: set[Whitened] = {kind for _, kind, _ in without}
    if "target" in kinds:
        few = [
            f"{name} ({count:,})"
            for name, count in zip(sweep.tasks, sweep.task_sentences, strict=True)
            if count <= sweep.width + 1
        ]
        if few:
            yield (
                f"No value for target: {sweep.width + 1:,} sentences or fewer cannot whiten {sweep.width} dimensions, "
                f"and an average needs all tasks. Too few has {', '.join(few)}."
            )
        else:
            yield "No value for target: the vectors of a task differ by rounding alone."
    if "corpus" in kinds:
        yield (
            f"No value for corpus: its {sweep.corpus_sentences:,} sentences have the same vector there, or are too few "
            f"for {sweep.width} dimensions."
        )


def _marked(rows: Sequence[tuple[str, float, tuple[str, ...]]]) -> Iterator[Row]:
    """Yield rows, those with the highest value of their group marked as the best."""
    highest: dict[str, float] = {}
    for group, value, _ in rows:
        highest[group] = max(highest.get(group, float("-inf")), value)
    for group, value, cells in rows:
        yield Row(cells, value == highest[group] > float("-inf"))


def _cell(value: float | None) -> str:
    return EMPTY if value is None else f"{value:.2f}"
