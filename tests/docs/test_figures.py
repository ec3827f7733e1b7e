"""Compare the tables of speed and memory in README.md and in three pages with the figures of benchmarks/peers.

A page may round a median, and may say nothing else. Looked at is, on the processor that the README names
("2 threads of an AMD EPYC with VNNI"), each row whose first cell is in `ENGINES` or `WHITEN`, by the heads of the
columns in `COLUMNS`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.peers.__main__ import table

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks" / "peers"
TABLE = (PEERS / "table.md").read_text("utf-8")
FIGURES = json.loads((PEERS / "figures.json").read_text("utf-8"))
README = (ROOT / "README.md").read_text("utf-8")
SPEED, ONE, MEMORY, START, WORST = "short", "one, ms", "MB", "start, ms", "worst"
MEASURES = {"short": SPEED, "long": "long", "one": ONE, "rss": MEMORY, "cold": START}
ENGINES = {
    "whiten, int8": "whiten-int8",
    "whiten, float32": "whiten-fp32",
    "whiten, `--layers 0`": "whiten-layer0",
    "model2vec, the same table": "model2vec-layer0",
    "sentence-transformers, onnxruntime, int8": "st-onnx-int8",
    "sentence-transformers, onnxruntime, float32": "st-onnx",
    "sentence-transformers, PyTorch": "st-torch",
    "sentence-transformers, PyTorch, float32": "st-torch",
    "OpenVINO, int8": "openvino-int8",
    "OpenVINO, bfloat16": "openvino-bf16",
    "CTranslate2, int8": "ctranslate2-int8",
    "fastembed, float32": "fastembed-fp32",
}
WHITEN = {"all-MiniLM-L6-v2, int8": "whiten-int8", "all-MiniLM-L6-v2, float32": "whiten-fp32"}
COLUMNS = {
    "all-MiniLM-L6-v2": ("minilm", SPEED),
    "texts/s": ("minilm", SPEED),
    "one text": ("minilm", ONE),
    "worst cosine": ("minilm", WORST),
    "memory": ("minilm", MEMORY),
    "first vector after": ("minilm", START),
    "long texts/s": ("minilm", "long"),
}
NOT_COMPARED = "–"
NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")

Cells = dict[tuple[str, str, str], float]


def rows_of(text: str) -> Iterator[dict[str, str]]:
    """Yield the rows of the tables of a page, by the heads of their columns."""
    heads: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            heads = []
        elif not heads:
            heads = cells
        elif not set(line) <= set("|-: "):
            yield dict(zip(heads, cells, strict=True))


def measured() -> Cells:
    """Return the medians of the README's processor, by model, engine and column."""
    named = re.search(r"2 threads of an? (.+?) with (\w+)", README)
    assert named, "the README names the processor of its table: 2 threads of an AMD EPYC with VNNI"
    (models,) = [models for place, models in FIGURES.items() if f"of {named[1]} (" in place and named[2] in place]
    return {
        (model, engine, name): median(rounds[key])
        for model, figures in models.items()
        for engine, rounds in figures.items()
        for key, name in MEASURES.items()
    } | {
        (model, engine, WORST): rounds["cosines"][1]
        for model, figures in models.items()
        for engine, rounds in figures.items()
        if rounds.get("cosines")
    }


CELLS = measured()


def differing(shown: list[str], cells: list[float]) -> list[tuple[str, float]]:
    """Return the figures of a page that are not their cell, rounded to the decimals that are shown."""
    assert len(shown) == len(cells), f"{shown} beside {cells}"
    pairs = zip(shown, cells, strict=True)
    return [(figure, cell) for figure, cell in pairs if abs(value(figure) - cell) > half_a_unit(figure) * 1.001]


def value(figure: str) -> float:
    return float(figure.replace(",", ""))


def half_a_unit(figure: str) -> float:
    return 0.5 * 10.0 ** -len(figure.partition(".")[2])


@pytest.mark.parametrize(
    ("place", "model", "figures"), [(place, *row) for place, models in FIGURES.items() for row in models.items()]
)
def test_the_table_has_the_medians(place: str, model: str, figures: Any) -> None:
    assert table(place, model, figures) in TABLE


@pytest.mark.parametrize(
    ("page", "count"),
    [("README.md", 6), ("docs/compare.md", 11), ("docs/guides/production.md", 2), ("docs/howto/serverless.md", 2)],
)
def test_tables_of_speed(page: str, count: int) -> None:
    found = 0
    for row in rows_of((ROOT / page).read_text("utf-8")):
        engine = (ENGINES | WHITEN).get(next(iter(row.values())))
        if engine is None:
            continue
        found += 1
        for column in row.keys() & COLUMNS.keys():
            if row[column] == NOT_COMPARED:
                continue
            model, measure = COLUMNS[column]
            cell = CELLS[model, engine, measure] / (1000 if measure == START else 1)  # milliseconds, shown as seconds
            assert differing(NUMBER.findall(row[column]), [cell]) == [], (page, engine, column)
    assert found == count
