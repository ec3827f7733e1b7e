"""Read pairs of sentences with scores, such as a development set of the STS benchmark."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.records import CorpusRecord
from whiten_runtime.errors import DataError, check_file
from whiten_runtime.files.records import (
    Kind,
    WrongRowError,
    fields_of,
    number_of,
    parse_records,
    parse_table,
    records_of,
    value_of,
)

COLUMNS = ("sentence1", "sentence2", "score")
_STS_COLUMNS = (5, 6, 4)
_LEAST = 10
_WANTED = (
    f".csv, .tsv or .jsonl with {', '.join(COLUMNS)}, or tab-separated lines as the STS benchmark has them "
    "(score and sentences in columns 5 to 7)"
)


@dataclass(frozen=True)
class Pairs:
    first: tuple[str, ...]  # first sentence of each pair
    second: tuple[str, ...]  # second sentence of each pair
    scores: NDArray[np.float64]  # similarity of each pair as judged by people, [n]
    record: CorpusRecord  # name, SHA-256 and number of pairs of the file


def read_pairs(path: Path) -> Pairs:
    check_file(path, "wanted pairs with scores")
    with path.open("rb") as stream:
        rows = list(_rows(stream, path))
    scores = np.array([score for _, _, score in rows])
    if len(rows) < _LEAST or np.ptp(scores) == 0:
        raise DataError(f"{path}: {len(rows)} pairs that tell nothing; wanted {_LEAST} or more, with different scores")
    digest = hashlib.sha256("".join(f"{a}\t{b}\t{score!r}\n" for a, b, score in rows).encode("utf-8", "surrogatepass"))
    record = CorpusRecord(name=path.name, sha256=digest.hexdigest(), sentences=len(rows))
    return Pairs(tuple(row[0] for row in rows), tuple(row[1] for row in rows), scores, record)


def _rows(stream: BinaryIO, path: Path) -> Iterator[tuple[str, str, float]]:
    first = stream.readline().decode("latin-1").split("\t")
    stream.seek(0)
    headless = len(first) > max(_STS_COLUMNS) and number_of(first[_STS_COLUMNS[2]]) is not None
    if path.suffix == ".jsonl":
        yield from (pair for _, pair in parse_records(records_of(stream, str(path), "jsonl"), str(path), _of_object))
        return
    if not headless:
        kind: Kind = "tsv" if path.suffix == ".tsv" else "csv"
        yield from (pair for _, pair in parse_table(stream, str(path), kind, COLUMNS, _WANTED, _pair))
        return

    def read(row: int, lines: list[bytes]) -> tuple[str, str, float] | None:
        fields = fields_of(lines, row, "tsv")
        return _pair([fields[column] if column < len(fields) else None for column in _STS_COLUMNS]) if fields else None

    yield from (pair for _, pair in parse_records(records_of(stream, str(path), "tsv"), str(path), read))


def _of_object(row: int, lines: list[bytes]) -> tuple[str, str, float] | None:
    value = value_of(lines[0], row)
    if value is None:
        return None
    return _pair([value.get(name) if isinstance(value, dict) else None for name in COLUMNS])


def _pair(fields: Sequence[object]) -> tuple[str, str, float]:
    first, second, score = fields
    value = number_of(score)
    if not isinstance(first, str) or not isinstance(second, str) or value is None:
        raise WrongRowError(f"holds {str(fields)[:80]} as sentences and score; wanted {_WANTED}")
    return first, second, value
