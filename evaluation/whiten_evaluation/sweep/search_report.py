"""Write what a sweep found in search: in plain words, as a table, and as csv."""

import csv
import io

from whiten_evaluation.sweep.result import SearchScore, Sweep, in_words, text_of

_MOST_PAIRS = 10
"""Combinations of several layers that the table of search shows: the best ones."""


def summary_of_search(sweep: Sweep) -> list[str]:
    """Return the result of search, and whether it is another than that of similarity."""
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


def search_csv(sweep: Sweep) -> str:
    """Return the scores of search as csv, one row each."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("whitened", "layers", "average", *sweep.collections))
    for score in sweep.searches:
        layers = " ".join(map(str, score.layers))
        writer.writerow((score.whitened, layers, score.average, *score.collections))
    return stream.getvalue()


def _kind(score: SearchScore) -> str:
    return "whitened on the corpus" if score.whitened else "not whitened"
