"""Read columns of Parquet files with pyarrow."""

from collections.abc import Iterator
from typing import Any, BinaryIO

from whiten_runtime.errors import DataError, UsageError, needing
from whiten_runtime.files.records import WrongRowError, choose_column

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
