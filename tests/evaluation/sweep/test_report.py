"""Test the tables, the explanations and the findings of a sweep's report."""

import re

from support.sweeps import made_score, made_sweep
from whiten_evaluation.sweep.findings import findings, summary
from whiten_evaluation.sweep.report import html
from whiten_evaluation.sweep.results import FitCurve
from whiten_evaluation.sweep.tables import (
    best_of_sizes,
    best_pairs,
    depths_table,
    singles,
    tasks_table,
    whitenings_table,
)


def test_whitenings_are_beside_one_another_and_the_best_row_is_marked() -> None:
    sweep = made_sweep()
    table = whitenings_table(sweep, singles(sweep))
    assert table.header == ("layers", "pooling", "not whitened", "target", "corpus")
    assert [row.cells for row in table.rows[:2]] == [
        ("0", "mean", "50.62", "53.62", "56.62"),
        ("1", "mean", "51.62", "54.62", "57.62"),
    ]
    assert [row.cells[:2] for row in table.rows if row.best] == [("4", "mean"), ("4", "cls")]
    assert whitenings_table(made_sweep(corpus=False), []).header[2:] == ("not whitened", "target")


def test_rows_without_a_value_are_explained() -> None:
    sweep = made_sweep()
    table = whitenings_table(sweep, singles(sweep))
    assert [row.cells[2:] for row in table.rows if "-" in row.cells] == [("-", "-", "-")]
    [note] = table.notes
    assert note.startswith("No value for layer 0 with cls pooling: every text has the same vector there")
    few = made_sweep(few=True)
    notes = whitenings_table(few, singles(few)).notes
    assert len(notes) == 2
    assert "33 sentences or fewer cannot whiten 32 dimensions" in notes[1]
    assert notes[1].endswith("Too few has STS-B (24).")
    corpus = made_sweep(
        2, scores=(made_score("mean", "none", (1,), 50, 50), made_score("mean", "corpus", (1,), None, 50))
    )
    assert "No value for corpus: its 320 sentences" in whitenings_table(corpus, [("mean", (1,))]).notes[0]
    assert whitenings_table(made_sweep(poolings=("mean",)), [("mean", (1,))]).notes == ()


def test_tasks_are_columns_and_whitenings_rows() -> None:
    sweep = made_sweep()
    table = tasks_table(sweep, [("mean", (1,)), ("mean", (0,))])
    assert table.header == ("layers", "pooling", "whitening", "average", "STS-B", "STS12")
    assert [row.cells[:3] for row in table.rows[:4]] == [
        ("1", "mean", "not whitened"),
        ("1", "mean", "target"),
        ("1", "mean", "corpus"),
        ("0", "mean", "not whitened"),
    ]
    assert table.rows[0].cells[3:] == ("51.62", "51.12", "52.12")
    assert [row.best for row in table.rows] == [False, False, True, False, False, False]


def test_best_pairs_and_sizes_are_chosen_for_every_pooling() -> None:
    sweep = made_sweep()
    assert best_pairs(sweep, 1) == [("mean", (3, 4)), ("cls", (3, 4))]
    assert best_of_sizes(sweep)[:2] == [("mean", (4,)), ("mean", (3, 4))]


def test_speeds_have_their_spread() -> None:
    table = depths_table(made_sweep())
    assert table.header[1:3] == ("texts/s", "lowest to highest")
    assert table.rows[0].cells[:3] == ("0", "900", "800 to 990")
    assert table.notes == ()
    bare = [{"layer": 0, "texts_per_second": None, "spread": None, "best": None}]
    sweep = made_sweep()
    depths = tuple(type(sweep.depths[0])(**depth) for depth in bare)
    table = depths_table(made_sweep(depths=depths))
    assert table.rows[0].cells == ("0", "-", "-", "-", "-", "-")
    assert not table.rows[0].best
    assert "it was not measured (--no-speed)" in table.notes[0]
    assert "all texts have the same vector with mean pooling" in table.notes[1]


def test_report_is_one_file_with_bold_rows_and_escaped_names() -> None:
    sweep = made_sweep()
    text = html(sweep, {"layers": b"png"})
    assert "made &amp; named &lt;so&gt;" in text
    assert "tr.best { font-weight: bold; }" in text
    assert '<tr class="best"><td>4</td><td>mean</td>' in text
    assert 'class="note">No value for layer 0 with cls pooling' in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "320 evenly spaced sentences of builtin:made" in summary(sweep)
    assert "Corpus:" not in summary(made_sweep(corpus=False))


def test_findings_tell_both_whitenings_and_the_best_shrinkage() -> None:
    lines = findings(made_sweep())
    assert lines[0].startswith("Best of 186: layers 0,1,2,3,4, mean, whitened on the corpus")
    assert "Whitening on target lifts layers 0,1,2,3,4 (mean) by 3.00." in lines
    assert "Whitening on the corpus lifts layers 0,1,2,3,4 (mean) by 6.00." in lines
    assert any(
        line.startswith("Shrinkage 0.9 is best for layers 0,1,2,3,4, whitened on target: 60.90") for line in lines
    )
    none = made_score("cls", "none", (0,), None, None)
    assert findings(made_sweep(scores=(none,))) == [
        "Nothing could be scored: every text has the same vector in every layer."
    ]


def test_of_equal_shrinkages_the_smallest_is_named() -> None:
    flat = FitCurve(
        pooling="mean",
        layers=(1,),
        what="the best layer",
        whitening="target",
        varied="shrinkage",
        values=(0.0, 0.5),
        averages=(60.0, 60.0),
    )
    assert any(line.startswith("Shrinkage 0 is best for layer 1,") for line in findings(made_sweep(fits=(flat,))))
