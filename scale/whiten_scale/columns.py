"""Find the types of the columns that are carried: those of JSON, and one for all files; bring values into them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from whiten_runtime.errors import UsageError, encodable
from whiten_runtime.files.rows import (
    LINES,
    Record,
    WrongRowError,
    import_parquet,
    is_bytes,
    is_string,
    type_of,
    value_of,
)

_RANGES = {"int64": (-(1 << 63), 1 << 63), "uint64": (0, 1 << 64)}
"""Types of whole numbers of JSON, each with its least number and the one after its largest."""

_EXACT = 1 << 53
"""Whole numbers up to it are the same in a double."""

_KINDS: dict[type | None, str] = {None: "null", str: "string", float: "double", bool: "bool"}


class JsonColumn:
    """Finds the type of a key of a .jsonl file: the widest of those that go together with its first value.

    Whole numbers become double where a fraction is among them. Null goes together with every type.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.absent = True  # whether no object has the key
        self._kind: type | None = None
        self._least = self._most = 0

    def add(self, value: Any, place: str) -> None:
        """Take the value of one more object; `place` names it, for an error."""
        self.absent = False
        kind = type(value)
        if value is None:
            return
        if self._kind is None and (kind in (dict, list, tuple) or (kind is int and _whole(value, value) is None)):
            raise UsageError(
                f"{place} holds {type_of(value)} at '{self.name}'; only texts and numbers of 64 bits can be carried"
            )
        if kind is int and self._kind in (None, int):
            least, most = min(self._least, value), max(self._most, value)
            if _whole(least, most) is not None:
                self._kind, self._least, self._most = int, least, most
        elif self._kind is None or (kind, self._kind) == (float, int):
            self._kind = kind

    @property
    def type(self) -> Any:
        """Return the type of pyarrow; null if no object has a value."""
        pyarrow, _ = import_parquet()
        return pyarrow.type_for_alias(_whole(self._least, self._most) if self._kind is int else _KINDS[self._kind])


def _whole(least: int, most: int) -> str | None:
    """Return the type that holds whole numbers from `least` to `most`; None if there is none."""
    return next((name for name, (first, end) in _RANGES.items() if first <= least and most < end), None)


def watched(records: Iterable[Record], name: str, columns: Sequence[JsonColumn]) -> Iterator[Record]:
    """Yield the records of a .jsonl file, and show their values to columns; those that cannot be read have none."""
    for row, lines in records:
        try:
            value = value_of(lines[0], row)
        except WrongRowError:
            value = None
        values = {LINES: value} if isinstance(value, str) else value or {}
        for column in columns:
            if column.name in values:
                column.add(values[column.name], f"'{name}': row {row}")
        yield row, lines


def carried_value(value: Any, column: Any) -> Any:
    """Return a value of a .jsonl, .csv or .tsv file in the type of its column."""
    if value is None:
        if column.nullable:
            return None
        raise WrongRowError(f"has no id at '{column.name}'")
    if isinstance(value, str) and is_string(column.type):
        text = encodable(value)
        if not column.nullable and text.count("\ufffd") > value.count("\ufffd"):  # other ids would become the same
            raise WrongRowError(f"has an id with half of a surrogate pair at '{column.name}'; UTF-8 cannot hold it")
        return text
    if not _fits(value, str(column.type)):
        raise WrongRowError(f"holds {type_of(value)} at '{column.name}'; wanted {column.type}, as in other rows")
    return value


def _fits(value: Any, kind: str) -> bool:
    if type(value) is int:
        first, end = (-_EXACT, _EXACT + 1) if kind == "double" else _RANGES.get(kind, (0, 0))
        return first <= value < end
    return not isinstance(value, str) and _KINDS.get(type(value)) == kind


def common_type(types: Iterable[Any]) -> Any:
    """Return the type that holds the values of all of some types of pyarrow; None if there is none.

    All types of strings are one, dictionaries of them too, and bytes beside them; numbers widen; null is part of every
    type. A type that all share stays as it is.
    """
    pyarrow, _ = import_parquet()
    distinct = [kind for kind in dict.fromkeys(types) if not pyarrow.types.is_null(kind)]
    if not distinct:
        return pyarrow.string()
    if len(distinct) == 1:
        return distinct[0]
    plain = [kind.value_type if pyarrow.types.is_dictionary(kind) else kind for kind in distinct]
    if any(map(is_string, plain)) and all(is_string(kind) or is_bytes(kind) for kind in plain):
        large = any(str(kind).startswith("large") for kind in plain)
        return pyarrow.large_string() if large else pyarrow.string()
    decimals = sum(map(pyarrow.types.is_decimal, plain))
    if decimals not in (0, len(plain)):  # pyarrow would give whole numbers too few digits
        return None
    try:
        schemas = [pyarrow.schema([("", kind)]) for kind in plain]
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pyarrow.ArrowException:
        return None


def holds(kind: Any, other: Any) -> bool:
    """Return whether a type of pyarrow holds all values of another one; of strings, each holds those of all others."""
    return common_type((kind, other)) == kind or (_is_text(kind) and _is_text(other))


def _is_text(kind: Any) -> bool:
    """Return whether a type is one of strings, or of a dictionary of them."""
    pyarrow, _ = import_parquet()
    return is_string(kind.value_type if pyarrow.types.is_dictionary(kind) else kind)


def cast_column(values: Any, column: Any) -> tuple[Any, dict[int, WrongRowError]]:
    """Return a column of a Parquet file in the type of all files, and what is wrong with its values, by place.

    Wrong values are null in the column.
    """
    pyarrow, _ = import_parquet()
    if values.type == column.type:
        return values, {}
    values = values.dictionary_decode() if pyarrow.types.is_dictionary(values.type) else values
    try:
        return values.cast(column.type), {}
    except pyarrow.ArrowInvalid:
        pass
    cast, wrong = [], {}
    for place in range(len(values)):
        try:
            cast.append(values.slice(place, 1).cast(column.type))
        except pyarrow.ArrowInvalid:
            cast.append(pyarrow.nulls(1, column.type))
            wrong[place] = WrongRowError(f"holds a value at '{column.name}' that {column.type} cannot hold")
    return pyarrow.concat_arrays(cast), wrong
