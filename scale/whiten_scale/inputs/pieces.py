"""Define what is known of an input file: its columns, and the pieces into which it was cut."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from whiten_runtime.errors import UsageError

Kind = Literal["txt", "jsonl", "csv", "tsv", "parquet"]

LINE_COLUMN = "text"
"""Name of the only column of files whose lines are texts."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Describes some consecutive records of a file.

    Attributes:
        file: index of the file in the plan.
        start: first byte, or first row of a Parquet file.
        end: byte or row after the last one. Of a compressed file, bytes are those of its content.
        row: number of the first record's row, from 1: the line on which it begins, or the row of a Parquet file.
        records: number of records, those without a text among them.
        sha256: of the bytes; empty for Parquet, whose footer is hashed.
    """

    file: int
    start: int
    end: int
    row: int
    records: int
    sha256: str = ""


class InputFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describes a file of texts.

    Attributes:
        name: path below the directory that was given, or its own name.
        kind: kind of file.
        compressed: whether it is a .gz file.
        size: number of bytes.
        columns: names in its header; None for lines that are texts, and for objects of JSON.
        column: column of the texts; None for lines that are texts.
        footer: SHA-256 of the metadata of a Parquet file.
        url: where it is now; not part of the plan's hash.
        stamp: what the file system gives a changed file anew; not part of the plan's hash.
    """

    name: str
    kind: Kind
    compressed: bool = False
    size: int
    columns: tuple[str, ...] | None = None
    column: str | None = None
    footer: str = ""
    url: str
    stamp: str


class ColumnChoice(msgspec.Struct, frozen=True):
    """Holds which columns are read.

    Attributes:
        column: column or key of the texts; None for the only one, else "text" or "sentence".
        id: column of the ids; None for the file and row of each text.
        keep: columns that are carried.
    """

    column: str | None = None
    id: str | None = None
    keep: tuple[str, ...] = ()

    def check(self) -> None:
        """Check that no column that is carried has the name of one that is written.

        Raises:
            UsageError: one has.
        """
        written = ("embedding", "code", *(() if self.id else ("file", "row")))
        for name in self.carried:
            if name in written:
                raise UsageError(
                    f"'{name}' is a column that is written itself; rename that of the input, or leave it out"
                )

    @property
    def carried(self) -> tuple[str, ...]:
        """Return the names of the columns that are carried, ids first."""
        names = (*([] if self.id is None else [self.id]), *self.keep)
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class Described:
    """Holds what the beginning of a file says.

    Attributes:
        columns: names in the header, or None.
        column: column of the texts, or None.
        carried: schema of pyarrow of the columns that are carried.
        start: first byte after the header.
        row: number of the row there.
    """

    columns: tuple[str, ...] | None
    column: str | None
    carried: Any
    start: int = 0
    row: int = 1
