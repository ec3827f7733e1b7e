"""Implement `whiten similarity`: cosines of the vectors in two files, row by row or the nearest of each."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.records import AlignmentRecord
from whiten_runtime.commands.console import echo, json_option, one_line_errors, print_json, quiet_option, warn
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.read_vectors import read_vectors
from whiten_runtime.files.vector_metadata import VectorMetadata, read_metadata
from whiten_runtime.files.write_vectors import json_numbers
from whiten_runtime.inference.vectors import Nearest, row_cosines

_ROWS_AT_ONCE = 4096

_Rows = NDArray[np.float32]


@command(
    section="Embed",
    examples=(
        "whiten similarity first.npy second.npy",
        "whiten similarity queries.npy passages.npy --top 5",
    ),
)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@heading("Input")
@option("--column", metavar="COLUMN", help="Column or key of the vectors in both files.")
@option("--allow-different-spaces", is_flag=True, help="Warn where the spaces differ, and compare all the same.")
@heading("Output")
@option("--top", metavar="K", type=click.IntRange(min=1), help="Print the K nearest rows of B for each row of A.")
@json_option
@quiet_option
@one_line_errors
def similarity(
    a: Path, b: Path, top: int | None, column: str | None, allow_different_spaces: bool, as_json: bool
) -> None:
    """Compare the vectors of two files by their cosines.

    A and B are files of .npy, .parquet or .jsonl.

    Prints the cosine of each row of A with the same row of B, one a line. With --top, prints a line for each row of A
    and each of its nearest rows of B: row of A, row of B, cosine, separated by tabs. Rows count from 0.

    Vectors of different spaces cannot be compared, unless one is aligned with the other. Files that whiten embed or
    transform wrote say which space theirs are in.

    Exits with 2 where the files cannot be compared with each other, and with 1 where one holds no vectors.
    """
    spaces = _check_spaces(a, b, allow_different_spaces)
    if top is None:
        cosines = _row_by_row(a, b, column)
        if as_json:
            print_json({"spaces": spaces, "cosines": json_numbers(cosines)})
        else:
            echo("\n".join(f"{cosine:.6f}" for cosine in cosines))
        return
    lists = (
        list(zip(rows.tolist(), json_numbers(cosines), strict=True))
        for part in _nearest(a, b, column, top)
        for rows, cosines in zip(part.rows, part.cosines, strict=True)
    )
    if as_json:
        near = [[{"row": row, "cosine": cosine} for row, cosine in hits] for hits in lists]
        print_json({"spaces": spaces, "nearest": near})
    else:
        for number, hits in enumerate(lists):
            echo("\n".join(f"{number}\t{row}\t{cosine:.6f}" for row, cosine in hits))


def _check_spaces(a: Path, b: Path, allowed: bool) -> list[str | None]:
    """Return the spaces that the files state, and warn where one states none."""
    known = [read_metadata(path) for path in (a, b)]
    first, second = (None if metadata is None else metadata.space for metadata in known)
    if first is None or second is None:
        silent = f"neither '{a}' nor '{b}'" if first == second else f"only '{b if first is None else a}'"
        warn(f"{silent} says which space its vectors are in; their cosines mean something only if it is the same one")
    elif first != second:
        message = f"'{a}' is in space {first}, '{b}' in space {second}: their vectors cannot be compared"
        if (alignment := _alignment(known)) is not None:
            close = alignment.description
            if not alignment.due:
                warn(f"spaces {first} and {second} are aligned: vectors of a text are close in both ({close})")
                return [first, second]
            message = f"spaces {first} and {second} are aligned, but too far apart ({close})"
        if not allowed:
            raise UsageError(f"{message}; embed both with one bundle, or pass --allow-different-spaces")
        warn(message)
    return [first, second]


def _alignment(known: Sequence[VectorMetadata | None]) -> AlignmentRecord | None:
    """Return the alignment of one of two files with the space of the other."""
    spaces = [metadata.space for metadata in known if metadata is not None]
    alignments = (metadata.alignment for metadata in known if metadata is not None)
    return next(
        (record for record in alignments if isinstance(record, AlignmentRecord) and record.space in spaces), None
    )


def _row_by_row(a: Path, b: Path, column: str | None) -> NDArray[np.float32]:
    """Return the cosine of each row of one file with the same row of the other, float32 [n]."""
    counts = np.zeros(2, np.int64)
    parts = []
    for first, second in zip_longest(_blocks(a, column), _blocks(b, column)):
        counts += [0 if rows is None else len(rows) for rows in (first, second)]
        if first is not None and second is not None:
            _check_width(a, b, first, second)
            if len(first) == len(second):
                parts.append(row_cosines(first, second))
    if counts[0] != counts[1]:
        raise UsageError(
            f"'{a}' holds {counts[0]} vectors and '{b}' {counts[1]}; wanted as many, or --top K for the nearest of each"
        )
    return np.concatenate(parts)


def _nearest(a: Path, b: Path, column: str | None, top: int) -> Iterator[Nearest]:
    """Yield the nearest rows of B for some thousands of rows of A at a time; B is read once for each block."""
    for queries in _blocks(a, column):
        hits, start = Nearest.empty(len(queries)), 0
        for rows in _blocks(b, column):
            _check_width(a, b, queries, rows)
            hits = hits.add(queries, rows, start, top)
            start += len(rows)
        yield hits


def _blocks(path: Path, column: str | None) -> Iterator[_Rows]:
    """Yield the vectors of a file, `_ROWS_AT_ONCE` at a time, however many the kind of file gives at once."""
    held: list[_Rows] = []
    empty = True
    for part in read_vectors(path, column):
        held, empty = [*held, part], False
        while sum(map(len, held)) >= _ROWS_AT_ONCE:
            rows = np.concatenate(held)
            held = [rows[_ROWS_AT_ONCE:]]
            yield rows[:_ROWS_AT_ONCE]
    if empty:
        raise DataError(f"{path}: holds no vectors; give a file with vectors in it")
    if any(map(len, held)):
        yield np.concatenate(held)


def _check_width(a: Path, b: Path, first: _Rows, second: _Rows) -> None:
    if first.shape[1] != second.shape[1]:
        raise UsageError(
            f"vectors of {first.shape[1]} ('{a}') and {second.shape[1]} dimensions ('{b}') cannot be compared; embed "
            "both with the same bundle and --truncate-dim"
        )
