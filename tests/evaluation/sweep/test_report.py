"""Test the words, the table and the figures of a sweep's report."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whiten_evaluation.sts import Interval, Subset, Task
from whiten_evaluation.sweep.layers import LayerGraph, LayerVectors
from whiten_evaluation.sweep.result import Best, Score, SearchScore, Sweep, Whitened
from whiten_evaluation.sweep.scoring import LayerMoments
from whiten_evaluation.sweep.search import Search, of_sizes, score_search
from whiten_runtime.inference.options import Prompts
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import SOFT_WEIGHT

pytest.importorskip("matplotlib", reason="needs the extra test-all")

from whiten_evaluation.sweep.figures import pairs_table
from whiten_evaluation.sweep.report import best_table, html, protocol, scores_csv, search_table, summary


def score(layers: tuple[int, ...], value: float | None, kind: Whitened = "none") -> Score:
    return Score(whitening=kind, layers=layers, tasks=(value, value), average=value)


def found(layers: tuple[int, ...], value: float, whitened: bool = False) -> SearchScore:
    return SearchScore(whitened=whitened, layers=layers, collections=(value,), average=value)


def made(
    *best: tuple[Score, float],
    scores: tuple[Score, ...] = (),
    exhaustive: bool = True,
    searches: tuple[SearchScore, ...] = (),
) -> Sweep:
    """Make a sweep of seven layers with the best rows, each with the upper end of its difference to the first."""
    every = [score(layers, 50.0 + sum(layers), "task") for layers in of_sizes(range(7), range(1, 3))]
    return Sweep(
        model="made & named <so>",
        checkpoint=None,
        weights_sha256="0" * 64,
        layers=tuple(range(7)),
        depth=6,
        pooling="mean",
        width=32,
        max_seq_length=48,
        tasks=("STS-B", "STS12"),
        absent={},
        sentences=400,
        corpus="builtin:made",
        corpus_sentences=320,
        exhaustive=exhaustive,
        scores=scores or tuple(every),
        best=tuple(
            Best(score=row, interval=Interval(60.0, 70.0), difference=Interval(high - 3, high)) for row, high in best
        ),
        collections=("cranfield",) if searches else (),
        by_cosine=True,
        searches=searches,
        seconds={"embed": 1.0},
    )


def test_search_that_disagrees_with_similarity_is_said() -> None:
    searches = (found((0, 6), 40.21), found((0, 6), 39.0, True), found((6,), 50.9), found((0,), 17.3, True))
    lines = summary(made((score((0, 6), 82.41), 0.0), searches=searches))
    assert lines[-2:] == [
        "In search, layer 6 is best: nDCG@10 50.9 (not whitened).",
        "Similarity and search disagree: layers 0,6, best in similarity, find 40.2. "
        "Choose by what the vectors are for.",
    ]
    lines = summary(made((score((6,), 82.41), 0.0), searches=searches))
    assert lines[-1].startswith("In search, layer 6 is best")
    _, rows = search_table(made(searches=searches))
    assert [row[0] for row in rows] == ["6", "0,6", "0,6", "0"]


def test_result_is_told_in_plain_words() -> None:
    single = (score((5,), 66.52, "task"), score((0,), 61.0), score((6,), 82.0))
    best = (score((0, 6), 82.41), 0.0)
    assert summary(made(best, (score((5,), 66.52), -9.0), scores=single)) == [
        "Layers 0,6 are best: 82.4 (not whitened).",
        "Layer 5 alone gives 66.5 at 1.2 × the speed (whitened on the task).",
    ]
    alike = made((score((1, 2), 82.41, "corpus"), 0.0), (score((1,), 82.0), 0.4), scores=(score((0,), 61.0),))
    assert summary(alike) == [
        "Layers 1,2 are best: 82.4 (whitened on the corpus).",
        "Layer 0 alone gives 61.0 without running any block (not whitened).",
        "On these pairs, layer 1 (82.0) cannot be told from the best.",
    ]
    assert summary(made(scores=(score((0,), None),)))[0].startswith("Nothing could be scored")


def test_table_has_intervals_and_speeds() -> None:
    header, rows = best_table(made((score((2, 6), 82.41, "task"), 0.0), (score((0,), 66.5), -9.0)))
    assert header[:3] == ("layers", "whitening", "average")
    assert rows == [
        ("2,6", "task", "82.41", "60.00 to 70.00", "", "", "1.0 ×"),
        ("0", "not whitened", "66.50", "60.00 to 70.00", "-15.91", "-12.00 to -9.00", "no block"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("exhaustive", [True, False])
def test_report_is_one_file_with_three_figures(exhaustive: bool) -> None:
    text = html(made((score((2, 6), 82.41), 0.0), exhaustive=exhaustive), ["few <texts>"])
    assert "made &amp; named &lt;so&gt;" in text
    assert "Warning: few &lt;texts&gt;" in text
    assert text.count("data:image/png;base64,iVBORw0KGgo") == 3
    assert ("beam search" in text) is not exhaustive
    assert not re.search(r"(src|href)=\"(?!data:)", text)  # the report needs no other file
    assert "Nothing could be scored" in html(made(scores=(score((0,), None),)))


def test_maps_and_csv_have_every_score() -> None:
    sweep = made(scores=(score((1,), 50.0), score((1, 3), 60.0), score((1, 2, 3), 70.0), score((0,), None)))
    table = pairs_table(sweep, "none")
    assert (table[1, 1], table[1, 3], table[3, 1]) == (50, 60, 60)
    assert np.isfinite(table).sum() == 3
    assert scores_csv(sweep).splitlines()[1:] == [
        "none,1,50.0,50.0,50.0",
        "none,1 3,60.0,60.0,60.0",
        "none,1 2 3,70.0,70.0,70.0",
        "none,0,,,",
    ]


def test_the_protocol_states_the_whitenings_that_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of the shrinkage are read where the moments are made, so that text and code cannot part."""
    weights: list[float] = []
    made_moments = LayerMoments.__init__

    def recording(self: LayerMoments, *arguments: Any, **options: Any) -> None:
        made_moments(self, *arguments, **options)
        weights.append(self.shrinkage)

    monkeypatch.setattr(LayerMoments, "__init__", recording)
    random = np.random.default_rng(0)
    graph = LayerGraph(Path(), (0, 1), "mean", 4, 0, 8, "right", Prompts())
    texts = tuple(f"text {number}" for number in range(40))
    table = random.normal(size=(40, 2, 4)).astype(np.float32)
    vectors = LayerVectors(graph, {text: row for row, text in enumerate(texts)}, table)
    task = Task("STS-B", (Subset("sts-b", texts[:20], texts[20:], random.normal(size=20), Path()),))
    Search(vectors, vectors, (task,), 1, Reporter()).run()
    assert weights == [0, SOFT_WEIGHT]  # on the task's sentences, and on the corpus
    score_search(vectors, vectors, (), set(), True, None, Reporter())
    assert weights[2:] == [SOFT_WEIGHT]
    text = " ".join(protocol(made(exhaustive=True)))
    assert "Searched" not in text
    assert "Task: whitened in full on each task's own sentences (WhiteningBERT's setting)." in text
    assert f"Corpus: whitened softly, with shrinkage {SOFT_WEIGHT:g}, on 320 sentences of builtin:made;" in text
