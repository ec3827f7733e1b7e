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

import csv
import io
import json
import math
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar, cast, get_args

from whiten_runtime.errors import DataError, UsageError, kind_of_place, needing
from whiten_runtime.files.compressed import Compression, content_of
from whiten_runtime.ort.process import long_fields

Kind = Literal["txt", "jsonl", "csv", "tsv", "parquet"]

_OTHER_NAMES: dict[str, Kind] = {"ndjson": "jsonl"}
"""Other endings of names, and the kinds that they mean."""

T = TypeVar("T")

Record = tuple[int, list[bytes]]
"""Number of the line on which a record begins, from 1, and its lines."""

USUAL_COLUMNS = ("text", "sentence")
"""Columns that are taken when the caller names none."""

LONGEST = 64 << 20
"""Bytes of the longest record that is read: a file without ends of lines would be read into memory as a whole."""

_LINE_BYTES = 48
"""Memory of a line of a field besides its bytes."""

_PART = 1 << 20
"""Bytes that are read at once at most: a file may have no other ends of lines than CR."""

SAMPLED = 1000
"""Leading records of a .jsonl file in which keys are looked for."""

_NUMBER = re.compile(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")

_FORMATS: dict[str, dict[str, Any]] = {
    "csv": {"delimiter": ",", "quoting": csv.QUOTE_MINIMAL},
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}


class WrongRowError(Exception):
    """Raised for a record that holds no text; the message says what it holds."""


def kind_of(name: str) -> tuple[Kind, Compression | None] | None:
    """Return the kind of a file, and how it is compressed; None for another kind."""
    parts = name.rpartition("/")[2].lower().split(".")
    compression = parts.pop() if len(parts) > 2 and parts[-1] in get_args(Compression) else None
    kind = _OTHER_NAMES.get(parts[-1], parts[-1]) if len(parts) > 1 else ""
    return (cast(Kind, kind), cast(Compression | None, compression)) if kind in get_args(Kind) else None


def endings() -> str:
    kinds, others = (", ".join(f".{name}" for name in get_args(names)) for names in (Kind, Compression))
    return f"{kinds}, or one of them with {others}"


def records_of(stream: BinaryIO, name: str, kind: Kind, row: int = 1, size: int | None = None) -> Iterator[Record]:
    """Yield the records of `size` bytes from the stream's place on, where line `row` begins; None for all bytes.

    Quoted fields of a .csv file may hold ends of lines.
    """
    lines = _lines_of(stream, name, row, size)
    for number, line in lines:
        record = [line]
        if kind == "csv" and b'"' in line:
            try:
                with long_fields:
                    next(csv.reader(_extend(record, lines, name), strict=True))
            except csv.Error as error:  # nobody knows where the record ends
                raise DataError(f"{name}: line {number}: {error}; correct its quotes") from None
        yield number, record


def parse_records(
    records: Iterable[Record], name: str, read: Callable[[int, list[bytes]], T | None]
) -> Iterator[tuple[int, T]]:
    """Yield the line of each record and what `read` returns for it; skip blank records, for which it returns None."""
    for row, lines in records:
        try:
            value = read(row, lines)
        except WrongRowError as error:
            raise DataError(f"{name}: line {row} {error}; correct it") from None
        if value is not None:
            yield row, value


def line_too_long(name: str, row: int) -> DataError:
    return DataError(f"{name}: line {row} is longer than {LONGEST >> 20} MiB; give one text a line, or shorten it")


def _lines_of(stream: BinaryIO, name: str, row: int, left: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their ends, which are LF, CR LF or CR, as for Python's `open`; no other character ends one."""
    rest = b""
    while part := stream.readline(_PART if left is None else min(left, _PART)):
        left = None if left is None else left - len(part)
        lines = (rest + part).splitlines(keepends=True) if rest or b"\r" in part else [part]
        rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
        for line in lines:
            if len(line) > LONGEST:
                raise line_too_long(name, row)
            yield row, line
            row += 1
        if len(rest) > LONGEST:
            raise line_too_long(name, row)
    if rest:
        yield row, rest


def _extend(record: list[bytes], lines: Iterator[tuple[int, bytes]], name: str) -> Iterator[str]:
    """Yield the first line of a record, then further ones as they are asked for, and append these to the record."""
    length = len(record[0])
    yield _latin(record[0])
    for row, line in lines:
        length += len(line) + _LINE_BYTES
        if length > LONGEST:
            raise DataError(f"{name}: line {row} is in a field of more than {LONGEST >> 20} MiB; close its quotes")
        record.append(line)
        yield _latin(line)


def _latin(line: bytes) -> str:
    """Return a line in which quotes and separators are where they are in its text, whatever its encoding."""
    return line.rstrip(b"\r\n").decode("latin-1") + "\n"


def line_text(line: bytes, row: int) -> str:
    """Return the text of a line without its end."""
    return _decode(line, row).rstrip("\r\n")


def _decode(line: bytes, row: int) -> str:
    """Return the text of a line with its end; the first line of a file may begin with a byte order mark."""
    if b"\0" in line:
        raise WrongRowError("holds a NUL byte, as UTF-16 does; wanted UTF-8")
    try:
        return line.decode("utf-8-sig" if row == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise WrongRowError(f"is not UTF-8 (byte 0x{line[error.start]:02x})") from None


def fields_of(lines: Sequence[bytes], row: int, kind: Kind) -> list[str]:
    """Return the fields of a record of a .csv or .tsv file; none of a blank one."""
    texts = [_decode(line, number) for number, line in enumerate(lines, row)]
    try:
        with long_fields:
            return next(csv.reader(texts, strict=True, **_FORMATS[kind]), [])
    except csv.Error as error:
        raise WrongRowError(f"cannot be read ({error})") from None


def parse_rows(
    stream: BinaryIO,
    name: str,
    kind: Kind,
    columns: Sequence[str],
    wanted: str,
    read: Callable[[list[Any]], T | None],
) -> Iterator[tuple[int, T]]:
    """Yield the line of each record of a .jsonl, .csv or .tsv file, and what `read` returns for its fields.

    They are the fields in some columns. The first record of a .csv or .tsv file is the header, which has each of them
    once; `wanted` tells what else to give. In an object of a .jsonl file, None stands for a key that is not there.
    """
    records = records_of(stream, name, kind)
    if kind == "jsonl":
        fields_at = _read_keys(columns)
    else:
        _, header = next(parse_records(records, name, lambda row, lines: fields_of(lines, row, kind) or None), (0, []))
        if not set(columns) <= set(header):
            raise UsageError(f"'{name}' has {_quoted(header) or 'nothing'} as header; wanted {wanted}")
        fields_at = _read_columns(kind, header, [choose_column(column, header, name) for column in columns])

    def read_record(row: int, lines: list[bytes]) -> T | None:
        fields = fields_at(row, lines)
        return None if fields is None else read(fields)

    yield from parse_records(records, name, read_record)


def _read_columns(
    kind: Kind, header: Sequence[str], columns: Iterable[str]
) -> Callable[[int, list[bytes]], list[Any] | None]:
    places = [header.index(column) for column in columns]

    def read(row: int, lines: list[bytes]) -> list[Any] | None:
        fields = fields_of(lines, row, kind)
        if not fields:
            return None
        if len(fields) != len(header):
            raise WrongRowError(f"has {len(fields)} columns; wanted {len(header)}")
        return [fields[place] for place in places]

    return read


def _read_keys(columns: Sequence[str]) -> Callable[[int, list[bytes]], list[Any] | None]:
    def read(row: int, lines: list[bytes]) -> list[Any] | None:
        value = value_of(lines[0], row)
        if isinstance(value, str):
            raise WrongRowError(f"holds a string; wanted an object with {', '.join(columns)}")
        return None if value is None else [value.get(column) for column in columns]

    return read


def value_of(line: bytes, row: int) -> str | dict[str, Any] | None:
    """Return the string or object that a line of a .jsonl file holds; None for a blank one."""
    text = line_text(line, row)
    if not text.strip():
        return None
    value = parse_json(text)
    if not isinstance(value, str | dict):
        raise WrongRowError(f"holds {type_of(value)}; wanted a string or an object")
    return value


def parse_json(text: str) -> Any:
    """Return the value of a line of JSON; what an object has twice is a tuple in it."""
    try:
        return _JSON.decode(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise WrongRowError(f"is not JSON ({error})") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        values: dict[str, list[Any]] = {name: [] for name in fields}
        for name, value in pairs:
            values[name].append(value)
        fields = {name: own[0] if len(own) == 1 else tuple(own) for name, own in values.items()}
    return fields


_JSON = json.JSONDecoder(object_pairs_hook=_object)


def text_at(value: str | dict[str, Any], column: str) -> str:
    if isinstance(value, str):
        return value
    if column not in value:
        raise WrongRowError(f"has no key '{column}'")
    if not isinstance(value[column], str):
        raise WrongRowError(f"holds {type_of(value[column])} at '{column}'; wanted a string")
    return str(value[column])


def values_of(records: Iterable[Record]) -> list[str | dict[str, Any]]:
    """Return the strings and objects of records of a .jsonl file, without those that cannot be read."""
    values = []
    for row, lines in records:
        try:
            value = value_of(lines[0], row)
        except WrongRowError:
            continue
        if value is not None:
            values.append(value)
    return values


def keys_of(values: Iterable[str | dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for value in values if isinstance(value, dict) for key in value))


def type_of(value: object) -> str:
    words = {dict: "an object", list: "a list", tuple: "two values", str: "a string", bool: "a truth value"}
    return "null" if value is None else words.get(type(value), f"the number {value!r:.30}")


def choose_column(
    column: str | None, available: list[str], name: str, usual_columns: tuple[str, ...] = USUAL_COLUMNS
) -> str:
    """Return the column that is asked for, else the only one, else a usual one."""
    if column is not None and column not in available:
        raise UsageError(f"'{name}' has no column '{column}', only {_quoted(available)}")
    if column is None and len(available) == 1 and {";", "\t"} & set(available[0]):
        raise UsageError(
            f"'{name}' has one column, {_quoted(available)}; columns of .csv files end at commas, of .tsv files at "
            "tabs: convert it, or name the column with --column"
        )
    chosen = available[0] if len(available) == 1 else column
    if chosen is None:
        chosen = next((usual for usual in usual_columns if usual in available), None)
    if chosen is None:
        raise UsageError(f"'{name}' has the columns {_quoted(available)}; choose one with --column")
    if available.count(chosen) > 1:
        raise UsageError(f"'{name}' has the column '{chosen}' twice; rename one of them")
    return chosen


def number_of(value: object) -> float | None:
    """Return a number of JSON, or one in ASCII digits of a field; None for all else, such as True, 1_0 and 1e999."""
    digits = isinstance(value, str) and _NUMBER.fullmatch(value)
    if not digits and type(value) not in (int, float):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _quoted(names: list[str]) -> str:
    first = [f"'{name[:40]}'" for name in names[:12]]
    return ", ".join(first) + (", ..." if len(names) > 12 else "")


BATCH = 4096
"""Rows of a Parquet file that are decoded at once, at most."""

_BATCH_BYTES = 64 << 20
"""Bytes of rows that are decoded at once, by their mean size."""


def import_parquet() -> tuple[Any, Any]:
    with needing("parquet"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet


def open_parquet(stream: BinaryIO, name: str) -> Any:
    pyarrow, parquet = import_parquet()
    try:
        return parquet.ParquetFile(stream)
    except pyarrow.ArrowException as error:
        raise DataError(f"{name}: not a parquet file ({' '.join(str(error).split())})") from None


def choose_strings(column: str | None, schema: Any, name: str) -> str:
    """Return the column of the texts of a Parquet file: strings, UTF-8 in bytes, or only nulls."""
    pyarrow, _ = import_parquet()
    chosen = choose_column(column, schema.names, name)
    kind = schema.field(chosen).type
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if not (is_string(kind) or is_bytes(kind) or pyarrow.types.is_null(kind)):
        raise UsageError(f"'{name}': column '{chosen}' holds {kind}; wanted strings, so choose another with --column")
    return chosen


def is_string(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


def is_bytes(kind: Any) -> bool:
    pyarrow, _ = import_parquet()
    return str(kind) in ("binary", "large_binary", "binary_view") or pyarrow.types.is_fixed_size_binary(kind)


def rows_at_once(file: Any, groups: list[int] | None = None) -> int:
    metadata = file.metadata
    chosen = [metadata.row_group(group) for group in (range(metadata.num_row_groups) if groups is None else groups)]
    rows: int = sum(group.num_rows for group in chosen)
    size: int = sum(group.total_byte_size for group in chosen)
    return max(1, min(BATCH, _BATCH_BYTES * rows // max(size, 1)))


def parquet_batches(file: Any, name: str, columns: list[str], groups: list[int] | None = None) -> Iterator[Any]:
    """Yield batches of the rows of some row groups; None for all."""
    failure = import_parquet()[0].ArrowException  # looked up here: a generator may be closed when modules are gone
    try:
        yield from file.iter_batches(rows_at_once(file, groups), groups, columns, use_threads=False)
    except failure as error:
        raise DataError(f"{name}: cannot be read ({' '.join(str(error).split())})") from None


def strings_of(column: Any) -> list[str | WrongRowError]:
    pyarrow, _ = import_parquet()
    plain = column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
    try:
        values = plain.cast(pyarrow.large_string()).to_pylist()
    except (pyarrow.ArrowInvalid, UnicodeDecodeError):
        values = map(_string, plain.cast(pyarrow.large_binary()).to_pylist())
    return [WrongRowError("holds null; wanted a string") if value is None else value for value in values]


def _string(value: bytes | None) -> str | WrongRowError | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return WrongRowError("is not UTF-8")


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


def record_reader(layout: Layout, others: Sequence[str] = ()) -> Callable[[int, list[bytes]], list[Any] | None]:
    """Return the function that reads the text of a record and its values in other columns; None for a blank record."""
    if layout.kind == "txt":
        return lambda row, lines: [line_text(lines[0], row)] * (1 + len(others))
    if layout.kind != "jsonl":
        columns = [column for column in (layout.column, *others) if column is not None]
        return _read_columns(layout.kind, layout.header or (), columns)
    key = layout.column or LINES

    def read_value(row: int, lines: list[bytes]) -> list[Any] | None:
        value = value_of(lines[0], row)
        if value is None:
            return None
        values = {LINES: value} if isinstance(value, str) else value
        return [text_at(value, key), *map(values.get, others)]

    return read_value
