"""Write a sweep in plain words, as one HTML file with its figures, and as csv for spreadsheets."""

import base64
import csv
import io
from collections.abc import Sequence
from html import escape
from typing import Any

from whiten_evaluation.sweep.figures import NAMES, figures, png
from whiten_evaluation.sweep.result import Best, Score, SearchScore, Sweep, average, in_words, text_of
from whiten_whitening.choosing import SOFT_WEIGHT

_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #22223b; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
img { max-width: 100%; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #e5e5ea; }
th:first-child, td:first-child { text-align: left; }
.note { color: #6c6c80; font-size: .9rem; }
"""


def summary(sweep: Sweep) -> list[str]:
    """Return the result in plain words: the best layers, and the best single layer below them with its speed."""
    if not sweep.best:
        nothing = ["Nothing could be scored: every text has the same vector in every layer."]
        return [*(nothing if sweep.tasks else []), *summary_of_search(sweep)]
    best = sweep.best[0].score
    verb = "is" if len(best.layers) == 1 else "are"
    lines = [f"{in_words(best.layers)} {verb} best: {average(best):.1f} ({_how(best)})."]
    top = best.layers[-1]
    single = [score for score in sweep.scores if len(score.layers) == 1 and score.layers[0] < top]
    if single and (other := max(single, key=average)).average is not None:
        speed = f"at {_speed(top, other.layers[0])} the speed" if other.layers[0] else "without running any block"
        lines.append(f"{in_words(other.layers)} alone gives {other.average:.1f} {speed} ({_how(other)}).")
    equal = [row for row in sweep.best[1:] if row.difference.high >= 0]
    if equal:
        row = equal[-1]
        named = in_words(row.score.layers).lower()
        lines.append(f"On these pairs, {named} ({average(row.score):.1f}) cannot be told from the best.")
    return lines + summary_of_search(sweep)


def best_table(sweep: Sweep) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and rows of the best combination up to each highest layer."""
    header = ("layers", "whitening", "average", "95 % interval", "to the best", "95 % interval", "speed")
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
        NAMES[score.whitening],
        f"{average(score):.2f}",
        f"{row.interval.low:.2f} to {row.interval.high:.2f}",
        *behind,
        _speed(sweep.depth, score.layers[-1]),
    )


def html(sweep: Sweep, warnings: Sequence[str] = ()) -> str:
    """Return the whole report as HTML that needs no other file."""
    header, rows = best_table(sweep)
    title = escape(f"{sweep.model}: layers and whitening")
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_CSS}</style></head><body>',
        f"<h1>{title}</h1>",
        *(f"<p>{escape(line)}</p>" for line in summary(sweep)),
        *(f'<p class="note">Warning: {escape(line)}</p>' for line in warnings),
    ]
    if sweep.searches:
        parts += ["<h2>Search: every layer, and the best combinations</h2>", *_html_table(*search_table(sweep))]
    if sweep.tasks:
        parts += [
            "<h2>The best combination up to each highest layer</h2>",
            *_html_table(header, rows),
            '<p class="note">Intervals are of a bootstrap over the pairs of sentences, paired for the difference to '
            "the best row: one with 0 in it may be chance. Speed is that of the whole network over the blocks that "
            "run; blocks are taken to be alike.</p>",
        ]
    for caption, figure in figures(sweep).items() if sweep.tasks else ():
        data = base64.b64encode(png(figure)).decode()
        parts.append(f'<h2>{caption}</h2><img alt="{caption}" src="data:image/png;base64,{data}">')
    parts += [f'<p class="note">{escape(line)}</p>' for line in protocol(sweep)]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"<table><tr>{''.join(f'<th>{escape(cell)}</th>' for cell in header)}</tr>",
        *(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows),
        "</table>",
    ]


def scores_csv(sweep: Sweep) -> str:
    rows = [(score.whitening, score.layers, score.average, *score.tasks) for score in sweep.scores]
    return _csv(("whitening", "layers", "average", *sweep.tasks), rows)


def search_csv(sweep: Sweep) -> str:
    rows = [(score.whitened, score.layers, score.average, *score.collections) for score in sweep.searches]
    return _csv(("whitened", "layers", "average", *sweep.collections), rows)


def _csv(header: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows((kind, " ".join(map(str, layers)), *scores) for kind, layers, *scores in rows)
    return stream.getvalue()


_MOST_PAIRS = 10
"""Combinations of several layers that the table of search shows: the best ones."""


def summary_of_search(sweep: Sweep) -> list[str]:
    if not sweep.searches:
        return []
    best = max(sweep.searches, key=lambda score: score.average)
    verb = "is" if len(best.layers) == 1 else "are"
    lines = [f"In search, {in_words(best.layers).lower()} {verb} best: nDCG@10 {best.average:.1f} ({_kind(best)})."]
    if sweep.best and (alike := sweep.best[0].score.layers) != best.layers:
        own = max((score for score in sweep.searches if score.layers == alike), key=lambda score: score.average)
        finds = "finds" if len(alike) == 1 else "find"
        lines.append(
            f"Similarity and search disagree: {in_words(alike).lower()}, best in similarity, {finds} "
            f"{own.average:.1f}. Choose by what the vectors are for."
        )
    return lines


def search_table(sweep: Sweep) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and rows of every layer in search, and of the best combinations of several."""
    ranked = sorted(sweep.searches, key=lambda score: -score.average)
    several = [score for score in ranked if len(score.layers) > 1][:_MOST_PAIRS]
    shown = [score for score in ranked if len(score.layers) == 1 or score in several]
    rows = [
        (text_of(score.layers), _kind(score), f"{score.average:.2f}", *(f"{value:.2f}" for value in score.collections))
        for score in shown
    ]
    return ("layers", "whitening", "nDCG@10", *sweep.collections), rows


def _kind(score: SearchScore) -> str:
    return "whitened on the corpus" if score.whitened else "not whitened"


def protocol(sweep: Sweep) -> list[str]:
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in sweep.seconds.items())
    size = f"{sweep.pooling} pooling, {sweep.width} dimensions, at most {sweep.max_seq_length} tokens"
    on_corpus = (
        f"whitened softly, with shrinkage {SOFT_WEIGHT:g}, on {sweep.corpus_sentences:,} sentences of {sweep.corpus}"
    )
    return [
        *(_protocol_of_similarity(sweep, size, on_corpus) if sweep.tasks else []),
        *(_protocol_of_search(sweep, size, on_corpus) if sweep.searches else []),
        f"Time: {times}. Weights: SHA-256 {sweep.weights_sha256}.",
    ]


def _protocol_of_similarity(sweep: Sweep, size: str, on_corpus: str) -> list[str]:
    searched = (
        "every combination of layers"
        if sweep.exhaustive
        else "every single layer, every two, and extensions of the best (beam search)"
    )
    return [
        f"Scored: {searched}; {size}; {sweep.sentences:,} sentences of {', '.join(sweep.tasks)}. Spearman's "
        "correlation of cosines with people's scores, times 100: mean over the sub-datasets of a task, then over the "
        "tasks.",
        f"Task: whitened in full on each task's own sentences (WhiteningBERT's setting). Corpus: {on_corpus}; for "
        "single layers, pairs and the best combinations.",
    ]


def _protocol_of_search(sweep: Sweep, size: str, on_corpus: str) -> list[str]:
    more = " and the best of similarity" if sweep.tasks else ""
    return [
        f"Searched: every single layer, every two{more}; {size}; {', '.join(sweep.collections)}. nDCG@10 by "
        f"{'cosine' if sweep.by_cosine else 'dot product'}, times 100: mean over the collections. Not whitened, and "
        f"{on_corpus}.",
    ]


def _how(score: Score) -> str:
    return "not whitened" if score.whitening == "none" else f"whitened on the {score.whitening}"


def _speed(blocks: int, whole: int) -> str:
    return f"{blocks / whole:.1f} ×" if whole else "no block"
