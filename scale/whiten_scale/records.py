"""Hold records of input files on their way: chunks of texts with what is carried beside them, and wrong rows."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from whiten_runtime.errors import DataError
from whiten_runtime.files.texts import import_parquet


class WrongRow(msgspec.Struct, frozen=True):
    """Describes a row that holds no text."""

    file: str
    row: int
    reason: str

    def error(self) -> DataError:
        """Return the error that names the file and the row."""
        return DataError(
            f"{self.file}: row {self.row} {self.reason}; correct it and name another --out, or leave it out by "
            "--on-error record of embed-many"
        )


class WrongRowError(Exception):
    """Raised for a record that holds no text; the message says what it holds."""


@dataclass
class Chunk:
    """Holds some consecutive records of one file.

    Attributes:
        file: name of the file.
        texts: the texts.
        rows: number of each text's row in its file, from 1: the line on which it begins, or the row of a Parquet file.
        carried: table of pyarrow with the columns that are carried, one row a text.
        records: number of records, those without a text among them.
        wrong: records that hold no text.
    """

    file: str
    texts: list[str]
    rows: list[int]
    carried: Any
    records: int
    wrong: list[WrongRow] = field(default_factory=list)


@dataclass
class Window:
    """Holds texts that are embedded together.

    Attributes:
        texts: the texts.
        files: name of each text's file.
        rows: number of each text's row in its file.
        carried: table of pyarrow with the columns that are carried.
    """

    texts: list[str]
    files: list[str]
    rows: list[int]
    carried: Any


def windows(chunks: Iterable[Chunk], size: int) -> Iterator[Window]:
    """Yield all texts in windows of `size` texts; the last one is smaller."""
    pyarrow, _ = import_parquet()
    waiting: Window | None = None
    for chunk in chunks:
        files = [chunk.file] * len(chunk.texts)
        if waiting is None:
            waiting = Window(chunk.texts, files, chunk.rows, chunk.carried)
        else:
            carried = pyarrow.concat_tables([waiting.carried, chunk.carried])
            waiting = Window(waiting.texts + chunk.texts, waiting.files + files, waiting.rows + chunk.rows, carried)
        while len(waiting.texts) >= size:
            yield _part(waiting, 0, size)
            waiting = _part(waiting, size, len(waiting.texts))
    if waiting is not None and waiting.texts:
        yield waiting


def _part(window: Window, start: int, end: int) -> Window:
    part = slice(start, end)
    carried = window.carried.slice(start, end - start)
    return Window(window.texts[part], window.files[part], window.rows[part], carried)
