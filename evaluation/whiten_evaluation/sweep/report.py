"""Write a sweep as one HTML file that contains its figures, and as csv for spreadsheets."""

import base64
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import get_args

from whiten_evaluation.sweep.results import NEAR, Score, Sweep, Whitened, average, layers_text, worthwhile

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #22223b; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
img { max-width: 100%; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #e5e5ea; }
th:first-child, td:first-child { text-align: left; } .note { color: #6c6c80; font-size: .9rem; }
"""

_CAPTIONS = {
    "layers": "Every layer alone, not whitened and whitened on each task's own sentences.",
    "pairs": "Every two layers; single ones on the diagonal.",
    "sizes": "The best combination of each size.",
    "dimensions": "Whitened to the k leading dimensions.",
    "depths": "The best combination of layers up to a depth, against the speed of the network cut there.",
}


def html(sweep: Sweep, pictures: Mapping[str, bytes]) -> str:
    """Return the whole report as HTML that needs no other file.

    Args:
        sweep: result of the sweep.
        pictures: PNG of each figure, by name.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>{escape(sweep.model)}: layers and whitening</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(sweep.model)}: layers and whitening</h1>",
        f"<p>{escape(_summary(sweep))}</p>",
        *(f"<p>{escape(line)}</p>" for line in _findings(sweep)),
    ]
    for name in _CAPTIONS:
        if name in pictures:
            data = base64.b64encode(pictures[name]).decode()
            caption = escape(_CAPTIONS[name])
            parts.append(f'<h2>{caption}</h2><img alt="{caption}" src="data:image/png;base64,{data}">')
        if name == "layers":
            parts.append(_table(_HEADER + sweep.tasks, _rows(sweep, 1, 1, 2 * len(sweep.layers))))
        if name == "pairs":
            parts.append(_table(_HEADER + sweep.tasks, _rows(sweep, 2, 2, 5)))
        if name == "sizes":
            parts.append(_table(_HEADER + sweep.tasks, _best_of_sizes(sweep)))
    parts.append(_depth_table(sweep))
    parts.append(f'<p class="note">{escape(_how(sweep))}</p></body></html>')
    return "\n".join(parts) + "\n"


def scores_csv(sweep: Sweep) -> str:
    """Return all scores as csv, one row each."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("pooling", "whitening", "layers", "average", *sweep.tasks))
    for score in sweep.scores:
        writer.writerow((score.pooling, score.whitening, " ".join(map(str, score.layers)), score.average, *score.tasks))
    return stream.getvalue()


def findings(sweep: Sweep) -> list[str]:
    """Return the main findings, one sentence each."""
    return list(_findings(sweep))


_HEADER: tuple[str, ...] = ("layers", "pooling", "whitening", "average")


def _summary(sweep: Sweep) -> str:
    absent = f" ({', '.join(sweep.absent)} were not there)" if sweep.absent else ""
    return (
        f"{sweep.width} dimensions, layers {layers_text(sweep.layers)}, {', '.join(sweep.poolings)} pooling, at most "
        f"{sweep.max_seq_length} tokens; {sweep.sentences:,} sentences of {', '.join(sweep.tasks)}{absent}. Spearman's "
        "correlation of cosines with people's scores, times 100: mean over the sub-datasets of a task, then over "
        f"{sweep.average_of}. Whitened: fitted once for each task, on all its sentences (WhiteningBERT's setting)."
    )


def _findings(sweep: Sweep) -> Iterable[str]:
    best = max((score for score in sweep.scores if score.average is not None), key=average, default=None)
    if best is None:
        return
    yield f"Best of {len(sweep.scores):,}: {_named(best)}."
    lifted = [layer for layer in sweep.layers if _gain(sweep, layer) > 0]
    hurt = [layer for layer in sweep.layers if _gain(sweep, layer) < 0]
    for layers, verb in ((lifted, "lifts"), (hurt, "lowers")):
        if layers:
            gains = sorted({f"{abs(_gain(sweep, layer)):.2f}" for layer in layers}, key=float)
            by = gains[0] if len(gains) == 1 else f"{gains[0]} to {gains[-1]}"
            plural = "s" if len(layers) > 1 else ""
            yield f"Whitening {verb} layer{plural} {layers_text(tuple(layers))} ({sweep.poolings[0]}) by {by}."
    if (found := worthwhile(sweep.depths)) and all(depth.texts_per_second for depth in sweep.depths):
        (depth, score), top = found, sweep.depths[-1]
        rate = (depth.texts_per_second or 0) / (top.texts_per_second or 1)
        yield (
            f"Depth {depth.layer} is worth its cost: {_named(score)}, within {NEAR} of the best of any depth, at "
            f"{rate:.2f} times the speed of all {top.layer} blocks."
        )


def _gain(sweep: Sweep, layer: int) -> float:
    found = [
        next((average(score) for score in sweep.of(sweep.poolings[0], kind, 1) if score.layers == (layer,)), None)
        for kind in get_args(Whitened)
    ]
    return 0.0 if found[0] is None or found[1] is None else found[1] - found[0]


def _named(score: Score) -> str:
    whitened = "whitened" if score.whitening == "target" else "not whitened"
    return f"layers {layers_text(score.layers)}, {score.pooling}, {whitened}, {average(score):.2f}"


def _rows(sweep: Sweep, low: int, high: int, most: int) -> list[list[str]]:
    """Return rows of the best combinations of `low` to `high` layers, at most `most` for each pooling and whitening."""
    rows = []
    for pooling in sweep.poolings:
        for kind in get_args(Whitened):
            found = [score for score in sweep.of(pooling, kind) if low <= len(score.layers) <= high]
            best = sorted(found, key=average, reverse=True)[:most]
            rows += [_cells(score) for score in (best if low > 1 else sorted(best, key=lambda score: score.layers))]
    return rows


def _best_of_sizes(sweep: Sweep) -> list[list[str]]:
    return [
        _cells(score)
        for pooling in sweep.poolings
        for kind in get_args(Whitened)
        for size in sweep.sizes()
        if (score := sweep.best(pooling, kind, size)) is not None
    ]


def _cells(score: Score) -> list[str]:
    whitened = "target" if score.whitening == "target" else "none"
    numbers = [f"{value:.2f}" if value is not None else "-" for value in (score.average, *score.tasks)]
    return [layers_text(score.layers), score.pooling, whitened, *numbers]


def _depth_table(sweep: Sweep) -> str:
    header = ("depth", "texts/s", "best layers", "whitening", "average")
    rows = [
        [
            str(depth.layer),
            f"{depth.texts_per_second:,.0f}" if depth.texts_per_second else "-",
            *(
                (layers_text(best.layers), best.whitening, f"{average(best):.2f}")
                if (best := depth.best)
                else ("-", "-", "-")
            ),
        ]
        for depth in sweep.depths
    ]
    return _table(header, rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _how(sweep: Sweep) -> str:
    searched = layers_text(sweep.searched)
    how = (
        f"all combinations of layers {searched} were scored"
        if sweep.exhaustive
        else f"larger combinations of layers {searched} are extensions of the best smaller ones (beam search)"
    )
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in sweep.seconds.items())
    return (
        f"Every single layer, every two, and {how}. Speeds are medians of three interleaved rounds on the machine that "
        f"made this report, float32, whitening not included. Time: {times}. A dash: all texts have the same vector, or "
        f"there are too few to whiten on. Weights: SHA-256 {sweep.weights_sha256}."
    )
