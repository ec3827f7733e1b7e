"""Write a sweep as one HTML file that contains its figures, and as csv for spreadsheets."""

import base64
import csv
import io
from collections.abc import Callable, Iterator, Mapping
from html import escape

from whiten_evaluation.sweep.combinations import Combination
from whiten_evaluation.sweep.findings import findings, how, summary
from whiten_evaluation.sweep.results import Sweep
from whiten_evaluation.sweep.tables import (
    Table,
    best_of_sizes,
    best_pairs,
    depths_table,
    singles,
    tasks_table,
    whitenings_table,
)
from whiten_runtime.bundle.manifest import Pooling

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #22223b; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
img { max-width: 100%; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #e5e5ea; }
th:first-child, td:first-child { text-align: left; } tr.best { font-weight: bold; }
.note { color: #6c6c80; font-size: .9rem; } summary { cursor: pointer; color: #6c6c80; }
"""

_CAPTIONS = {
    "layers": "Every layer alone, not whitened, and whitened on each task's own sentences or on a corpus",
    "pairs": "Every two layers, single ones on the diagonal; white: no score. Each map has a scale of its own",
    "sizes": "The best combination of each size",
    "shrinkage": "Whitened with a covariance shrunk towards a multiple of the identity",
    "betas": "Whitened in part, with an exponent below 1",
    "dimensions": "Whitened to the k leading dimensions",
    "depths": "The best combination of layers up to a depth, against the speed of the network cut there",
}

_ROWS: Mapping[str, Callable[[Sweep], list[tuple[Pooling, Combination]]]] = {
    "layers": singles,
    "pairs": best_pairs,
    "sizes": best_of_sizes,
}
"""Combinations in the tables below a figure."""


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
        f"<p>{escape(summary(sweep))}</p>",
        *(f"<p>{escape(line)}</p>" for line in findings(sweep)),
        *(part for name in _CAPTIONS for part in _section(sweep, name, pictures.get(name))),
        f'<p class="note">{escape(how(sweep))}</p></body></html>',
    ]
    return "\n".join(parts) + "\n"


def scores_csv(sweep: Sweep) -> str:
    """Return all scores as csv, one row each."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("pooling", "whitening", "layers", "average", *sweep.tasks))
    for score in sweep.scores:
        writer.writerow((score.pooling, score.whitening, " ".join(map(str, score.layers)), score.average, *score.tasks))
    return stream.getvalue()


def _section(sweep: Sweep, name: str, picture: bytes | None) -> Iterator[str]:
    """Yield a figure with its tables; the table of depths also without its figure."""
    caption = escape(_CAPTIONS[name])
    if picture is not None or name == "depths":
        yield f"<h2>{caption}</h2>"
    if picture is not None:
        data = base64.b64encode(picture).decode()
        yield f'<img alt="{caption}" src="data:image/png;base64,{data}">'
    if name in _ROWS:
        shown = _ROWS[name](sweep)
        yield _table(whitenings_table(sweep, shown))
        yield f"<details><summary>Scores of each task</summary>{_table(tasks_table(sweep, shown))}</details>"
    if name == "depths":
        yield _table(depths_table(sweep))


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    rows = []
    for row in table.rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row.cells)
        rows.append(f'<tr class="best">{cells}</tr>\n' if row.best else f"<tr>{cells}</tr>\n")
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    return f"<table><tr>{head}</tr>\n{''.join(rows)}</table>{notes}"
