"""Read pairs of sentences with scores, such as a development set of the STS benchmark."""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.records import CorpusRecord
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.ort.process import allow_long_csv_fields

allow_long_csv_fields()

COLUMNS = ("sentence1", "sentence2", "score")
_STS_COLUMNS = (5, 6, 4)
_LEAST = 10
_WANTED = (
    f"wanted .csv, .tsv or .jsonl with {', '.join(COLUMNS)}, or tab-separated lines as the STS benchmark has them "
    "(score and sentences in columns 5 to 7)"
)


@dataclass(frozen=True)
class Pairs:
    """Holds n pairs of sentences with scores."""

    first: tuple[str, ...]  # first sentence of each pair
    second: tuple[str, ...]  # second sentence of each pair
    scores: NDArray[np.float64]  # similarity of each pair as judged by people, [n]
    record: CorpusRecord  # name, SHA-256 and number of pairs of the file


def read_pairs(path: Path) -> Pairs:
    """Read a file of pairs."""
    if not path.is_file():
        raise UsageError(f"'{path}' is not a file; wanted pairs with scores")
    try:
        content = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 ({error.reason}); convert the file to UTF-8") from None
    try:
        rows = list(_rows(path, content))
    except (csv.Error, RecursionError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {_WANTED}") from None
    scores = np.array([score for _, _, score in rows])
    if len(rows) < _LEAST or np.ptp(scores) == 0:
        raise DataError(f"{path}: {len(rows)} pairs that tell nothing; wanted {_LEAST} or more, with different scores")
    digest = hashlib.sha256("".join(f"{a}\t{b}\t{score!r}\n" for a, b, score in rows).encode("utf-8", "surrogatepass"))
    record = CorpusRecord(name=path.name, sha256=digest.hexdigest(), sentences=len(rows))
    return Pairs(tuple(row[0] for row in rows), tuple(row[1] for row in rows), scores, record)


def _rows(path: Path, content: str) -> Iterator[tuple[str, str, float]]:
    lines = [line.rstrip("\r") for line in content.split("\n")]
    if path.suffix == ".jsonl":
        yield from _from_json(path, lines)
        return
    tabs = [line.split("\t") for line in lines if line.strip()]
    if tabs and len(tabs[0]) > max(_STS_COLUMNS) and _number(tabs[0][4]) is not None:
        table, columns = tabs, list(_STS_COLUMNS)
    else:
        table = (
            tabs
            if path.suffix == ".tsv"
            else [row for row in csv.reader(io.StringIO(content, newline=""), strict=True) if row]
        )
        header = table.pop(0) if table else []
        if not set(COLUMNS) <= set(header):
            raise UsageError(f"'{path}' is no file of pairs; {_WANTED}")
        columns = [header.index(name) for name in COLUMNS]
    for number, row in enumerate(table, 1):
        yield _pair(path, number, [row[column] if column < len(row) else None for column in columns])


def _from_json(path: Path, lines: list[str]) -> Iterator[tuple[str, str, float]]:
    for number, line in enumerate((line for line in lines if line.strip()), 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        yield _pair(path, number, [row.get(name) for name in COLUMNS] if isinstance(row, dict) else [None] * 3)


def _pair(path: Path, number: int, fields: Sequence[object]) -> tuple[str, str, float]:
    first, second, score = fields
    value = _number(score)
    if not isinstance(first, str) or not isinstance(second, str) or value is None:
        raise DataError(f"{path}: pair {number} is {str(fields)[:80]}; {_WANTED}")
    return first, second, value


def _number(text: object) -> float | None:
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return value if np.isfinite(value) else None
