"""Write a sweep in plain words, as one HTML file with its figures, and as csv for spreadsheets."""

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from whiten_evaluation.sweep.search import Best, Score, Sweep, Whitened, average
from whiten_runtime.bundle.records import Pooling
from whiten_whitening.moments import Float64Array

NAMES: Mapping[Whitened, str] = {"none": "not whitened", "task": "task", "corpus": "corpus"}


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #22223b; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
img { max-width: 100%; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #e5e5ea; }
th:first-child, td:first-child { text-align: left; }
.note { color: #6c6c80; font-size: .9rem; }
"""

_CAPTIONS = {
    "layers": "Every layer alone",
    "pairs": "Every two layers, single layers on the diagonal",
    "sizes": "The best combination of each size",
}


def summary(sweep: Sweep) -> list[str]:
    """Return the result in plain words: the best layers, and the best single layer below them with its speed."""
    if not sweep.best:
        return ["Nothing could be scored: every text has the same vector in every layer."]
    best = sweep.best[0].score
    verb = "is" if len(best.layers) == 1 else "are"
    lines = [f"{_named(best.layers)} {verb} best: {average(best):.1f} ({_how(best)})."]
    top = best.layers[-1]
    single = [score for score in sweep.scores if len(score.layers) == 1 and score.layers[0] < top]
    if single and (other := max(single, key=average)).average is not None:
        speed = f"at {_speed(top, other.layers[0])} the speed" if other.layers[0] else "without running any block"
        lines.append(f"{_named(other.layers)} alone gives {other.average:.1f} {speed} ({_how(other)}).")
    equal = [row for row in sweep.best[1:] if row.difference.high >= 0]
    if equal:
        row = equal[-1]
        named = _named(row.score.layers).lower()
        lines.append(f"On these pairs, {named} ({average(row.score):.1f}) cannot be told from the best.")
    return lines


def best_table(sweep: Sweep) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and rows of the best combination up to each highest layer."""
    header = ("layers", "pooling", "whitening", "average", "95 % interval", "to the best", "95 % interval", "speed")
    return header, [_row(sweep, row) for row in sweep.best]


def _row(sweep: Sweep, row: Best) -> tuple[str, ...]:
    score, first = row.score, sweep.best[0]
    behind = (
        ("", "")
        if row is first
        else (
            f"{average(score) - average(first.score):+.2f}",
            f"{row.difference.low:+.2f} to {row.difference.high:+.2f}",
        )
    )
    return (
        text_of(score.layers),
        score.pooling,
        NAMES[score.whitening],
        f"{average(score):.2f}",
        f"{row.interval.low:.2f} to {row.interval.high:.2f}",
        *behind,
        _speed(sweep.depth, score.layers[-1]),
    )


def html(sweep: Sweep, pictures: Mapping[str, bytes], warnings: Sequence[str] = ()) -> str:
    """Return the whole report as HTML that needs no other file; `pictures` are the PNG of each figure by name."""
    header, rows = best_table(sweep)
    title = escape(f"{sweep.model}: layers and whitening")
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head><body>',
        f"<h1>{title}</h1>",
        *(f"<p>{escape(line)}</p>" for line in summary(sweep)),
        *(f'<p class="note">Warning: {escape(line)}</p>' for line in warnings),
        "<h2>The best combination up to each highest layer</h2>",
        f"<table><tr>{''.join(f'<th>{cell}</th>' for cell in header)}</tr>",
        *(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows),
        "</table>",
        '<p class="note">Intervals are of a bootstrap over the pairs of sentences, paired for the difference to the '
        "best row: one with 0 in it may be chance. Speed is that of the whole network over the blocks that run; "
        "blocks are taken to be alike.</p>",
    ]
    for name, caption in _CAPTIONS.items():
        data = base64.b64encode(pictures[name]).decode()
        parts.append(f'<h2>{caption}</h2><img alt="{caption}" src="data:image/png;base64,{data}">')
    parts += [f'<p class="note">{escape(line)}</p>' for line in _protocol(sweep)]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def scores_csv(sweep: Sweep) -> str:
    """Return all scores as csv, one row each."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("pooling", "whitening", "layers", "average", *sweep.tasks))
    for score in sweep.scores:
        writer.writerow((score.pooling, score.whitening, " ".join(map(str, score.layers)), score.average, *score.tasks))
    return stream.getvalue()


def _protocol(sweep: Sweep) -> list[str]:
    """Say what was scored, and how."""
    searched = (
        "every combination of layers"
        if sweep.exhaustive
        else "every single layer, every two, and extensions of the best (beam search)"
    )
    lines = [
        f"Scored: {searched}; {sweep.width} dimensions, at most {sweep.max_seq_length} tokens; {sweep.sentences:,} "
        f"sentences of {', '.join(sweep.tasks)}. Spearman's correlation of cosines with people's scores, times 100: "
        "mean over the sub-datasets of a task, then over the tasks.",
        "Task: whitened in full on each task's own sentences (WhiteningBERT's setting).",
    ]
    if sweep.corpus:
        lines[1] += (
            f" Corpus: whitened in full on {sweep.corpus_sentences:,} sentences of {sweep.corpus}; for single layers, "
            "pairs and the best combinations."
        )
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in sweep.seconds.items())
    return [*lines, f"Time: {times}. Weights: SHA-256 {sweep.weights_sha256}."]


def text_of(layers: tuple[int, ...]) -> str:
    """Return layers as text, in the syntax of --layers."""
    return ",".join(map(str, layers))


def _how(score: Score) -> str:
    fitted = "" if score.whitening == "none" else f", whitened on the {score.whitening}"
    return f"{score.pooling} pooling{fitted}"


def _named(layers: tuple[int, ...]) -> str:
    return f"Layer{'s' if len(layers) > 1 else ''} {text_of(layers)}"


def _speed(blocks: int, kept: int) -> str:
    """Return how much faster a network is with some of its blocks."""
    return f"{blocks / kept:.1f} ×" if kept else "no block"


def pairs_table(sweep: Sweep, pooling: Pooling, kind: Whitened) -> Float64Array:
    """Return the averages of every pair of layers, single layers on the diagonal, [layers, layers]; NaN for none."""
    table = np.full((len(sweep.layers), len(sweep.layers)), np.nan)
    for score in sweep.of(pooling, kind):
        if len(score.layers) <= 2:
            first, second = (sweep.layers.index(layer) for layer in (score.layers[0], score.layers[-1]))
            table[first, second] = table[second, first] = average(score)
    return table
