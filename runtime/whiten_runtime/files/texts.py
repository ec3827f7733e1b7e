"""Read texts from files: .txt, .jsonl, .csv, .tsv and .parquet, each also .gz, .zst, .bz2 or .xz.

For one file and for pieces of many, this says which column holds the texts, and what is a header, a blank record, which
is skipped, or a wrong one:

- Lines end at LF, CR LF or CR, as for Python's `open`.
- Each line of a .txt file is a text, an empty one too.
- Each line of a .jsonl file is a string, or an object with a string under the key; lines of white space are blank.
- The first record of a .csv or .tsv file is its header, and the others have as many fields; lines without any are
  blank. Fields of a .csv file may be quoted; those of a .tsv file are taken as they are.
- A column of a .parquet file is one of strings of any type, or of bytes that are UTF-8; a null is wrong.
"""

import io
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from whiten_runtime.errors import DataError, UsageError, kind_of_place
from whiten_runtime.files.compressed import content_of
from whiten_runtime.files.parquet import choose_strings, open_parquet, parquet_batches, strings_of
from whiten_runtime.files.records import (
    LONGEST,
    SAMPLED,
    Kind,
    Record,
    WrongRowError,
    check_width,
    choose_column,
    endings,
    fields_of,
    keys_of,
    kind_of,
    line_text,
    line_too_long,
    parse_records,
    records_of,
    text_at,
    value_of,
    values_of,
)

STDIN = "-"
"""Standard input, in place of a path."""

_STDIN_NAME = "standard input"

LINES = "text"
"""Name of the only column of files whose lines are texts."""


_CHUNK = 1 << 16
"""Bytes of standard input that are read at once: as many as a pipe of Linux holds."""

_MANY = 1 << 18
"""Bytes of lines of standard input that are waited for no longer: some 4,000 lines."""


def read_texts(path: str | Path, column: str | None = None, kind: str | None = None) -> Iterator[str]:
    """Yield the texts of a file in order, including empty ones; see `read_rows`."""
    return (text for _, text in read_rows(path, column, kind))


def place_of(path: str | Path, column: str | None, index: int, kind: str | None = None) -> str:
    """Return the file and line, or row of a Parquet file, of a text that `read_texts` yields as number `index`."""
    if str(path) == STDIN:
        return f"{_STDIN_NAME}: {'line' if kind in (None, 'txt') else 'text'} {index + 1}"
    if kind_of_place(Path(path)) == "file":  # another kind of file cannot be read twice
        for row, _ in islice(read_rows(path, column, kind), index, None):
            return place_name(path, row)
    return f"{path}: text {index + 1}"


def place_name(path: str | Path, row: int) -> str:
    return f"{path}: {'row' if '.parquet' in Path(path).suffixes else 'line'} {row}"


def read_rows(path: str | Path, column: str | None = None, kind: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield the line, or row of a Parquet file, of each text of a file, and the text.

    `kind` is the ending that says what the content is, such as "jsonl" or "csv.gz", where the file's name does not.
    Standard input, `STDIN`, is .txt without it.
    """
    if str(path) == STDIN:
        if sys.stdin is None:
            raise UsageError("standard input is closed; name a file")
        if kind is None and column is not None:
            raise UsageError(
                f"lines of {_STDIN_NAME} are texts and have no column '{column}'; say with --kind what else they are, "
                "such as jsonl"
            )
        yield from _read(sys.stdin.buffer, _STDIN_NAME, column, "txt" if kind is None else kind)
        return
    file = Path(path)
    if kind is None and kind_of(file.name) is None:
        raise UsageError(f"'{file}': unknown kind of file; wanted {endings()}")
    if kind_of_place(file) == "directory":
        raise UsageError(f"'{file}' is a directory; name a file")
    try:
        with file.open("rb") as raw:
            yield from _read(raw, str(file), column, file.name if kind is None else kind)
    except FileNotFoundError:
        raise UsageError(f"'{file}' does not exist; check the path") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error


def arriving_texts() -> Iterator[list[str]] | None:
    """Return the lines of standard input in lists of those that are there, if it is a pipe or a terminal; else None."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError):  # it is closed, or no file of the system's
        return None
    return None if stat.S_ISREG(kind) else _arriving(sys.stdin.buffer)


def _arriving(stream: BinaryIO) -> Iterator[list[str]]:
    name, rest, row = _STDIN_NAME, bytearray(), 1
    read, more = record_reader(Layout("txt")), True
    while more:
        chunk = os.read(stream.fileno(), _CHUNK)
        rest += chunk
        more = bool(chunk)
        if more and len(rest) < _MANY and os.name != "nt" and select.select([stream], [], [], 0)[0]:
            continue  # more is there
        ends = rest.rfind(b"\n"), rest.rfind(b"\r", 0, len(rest) - 1)  # a CR at the end may be half of CR LF
        end = max(ends) + 1 if more else len(rest)
        if len(rest) - end > LONGEST:
            raise line_too_long(name, row)
        records = records_of(io.BytesIO(rest[:end]), name, "txt", row)
        texts = [text for _, (text,) in parse_records(records, name, read)]
        rest, row = rest[end:], row + len(texts)
        if texts:
            yield texts


def _read(raw: BinaryIO, name: str, column: str | None, ending: str) -> Iterator[tuple[int, str]]:
    """Yield the rows of an open file; its kind is known by the ending."""
    kinds = kind_of(f".{ending}")
    if kinds is None:
        raise UsageError(f"'{ending}' is no kind of file that can be read; wanted {endings()}")
    kind, compression = kinds
    with content_of(raw, name, compression) as stream:
        if kind == "parquet":
            in_place = compression is None and raw.seekable()
            yield from _read_parquet(stream if in_place else io.BytesIO(stream.read()), name, column)
        else:
            yield from _read_lines(stream, name, kind, column)


def _read_lines(stream: BinaryIO, name: str, kind: Kind, column: str | None) -> Iterator[tuple[int, str]]:
    layout, records = read_layout(stream, name, kind, column)
    return ((row, values[0]) for row, values in parse_records(records, name, record_reader(layout)))


def _read_parquet(stream: BinaryIO, name: str, column: str | None) -> Iterator[tuple[int, str]]:
    file = open_parquet(stream, name)
    batches = parquet_batches(file, name, [choose_strings(column, file.schema_arrow, name)])
    for row, text in enumerate(chain.from_iterable(strings_of(batch.column(0)) for batch in batches), 1):
        if isinstance(text, WrongRowError):
            raise DataError(f"{name}: row {row} {text}; correct it")
        yield row, text


@dataclass(frozen=True)
class Layout:
    kind: Kind
    header: tuple[str, ...] | None = None  # of a .csv or .tsv file; empty if the file is
    column: str | None = None  # column of the texts; None for lines that are texts
    start: int = 0  # first byte after the header
    row: int = 1  # number of the line there
    sample: tuple[str | dict[str, Any], ...] = ()  # leading values of a .jsonl file


def read_layout(
    stream: BinaryIO, name: str, kind: Kind, column: str | None, others: Sequence[str] = ()
) -> tuple[Layout, Iterator[Record]]:
    """Choose the column of the texts, check that the other ones are there, and return the records after the header.

    A column that no object of a .jsonl file's beginning has is left to the caller, if it is not that of the texts.
    """
    records = records_of(stream, name, kind)
    if kind == "txt":
        _check_lines(name, column, *others)
        return Layout(kind), records
    if kind == "jsonl":
        leading = list(islice(records, SAMPLED))
        sample = values_of(leading)
        if sample and all(isinstance(value, str) for value in sample):
            _check_lines(name, column, *others)
        keys = keys_of(sample)
        chosen = choose_column(column, keys, name) if keys else column
        return Layout(kind, column=chosen, sample=tuple(sample)), chain(leading, records)
    first = next(records, None)
    if first is None:
        return Layout(kind, ()), records
    _, lines = first
    try:
        header = fields_of(lines, 1, kind)
    except WrongRowError as error:
        raise DataError(f"{name}: its header {error}; correct it") from None
    if not any(map(str.strip, header)):
        raise DataError(f"{name}: line 1 names no column; wanted the header there")
    chosen, *_ = [choose_column(wanted, header, name) for wanted in (column, *others)]
    return Layout(kind, tuple(header), chosen, sum(map(len, lines)), 1 + len(lines)), records


def _check_lines(name: str, *columns: str | None) -> None:
    for column in columns:
        if column not in (None, LINES):
            raise UsageError(f"'{name}' has texts on its lines and no column '{column}', only '{LINES}'")


def record_reader(layout: Layout, others: Sequence[str] = ()) -> Callable[[int, list[bytes]], tuple[Any, ...] | None]:
    """Return the function that reads the text of a record and its values in other columns; None for a blank record."""
    if layout.kind == "txt":
        return lambda row, lines: (line_text(lines[0], row),) * (1 + len(others))
    if layout.kind == "jsonl":
        column = layout.column or LINES

        def read_value(row: int, lines: list[bytes]) -> tuple[Any, ...] | None:
            value = value_of(lines[0], row)
            if value is None:
                return None
            values = {LINES: value} if isinstance(value, str) else value
            return text_at(value, column), *map(values.get, others)

        return read_value
    header, kind = layout.header or (), layout.kind
    places = [header.index(name) for name in (layout.column, *others) if name is not None]

    def read_fields(row: int, lines: list[bytes]) -> tuple[str, ...] | None:
        fields = fields_of(lines, row, kind)
        if not fields:
            return None
        check_width(fields, len(header))
        return tuple([fields[place] for place in places])

    return read_fields
