"""Write vectors and their metadata to .npy, .parquet or .jsonl; a file appears only when it is complete."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import UsageError, encodable, kind_of_place
from whiten_runtime.files.parquet import import_parquet
from whiten_runtime.files.replacing import check_file_place, check_replaceable, hidden_file, replace_file, written_as
from whiten_runtime.files.vector_metadata import (
    KEY,
    SPACE_KEY,
    VectorMetadata,
    sidecars_of,
)

Vectors = NDArray[Any]

ELSEWHERE = "another --out"
"""Name in an error in place of a file that cannot be written."""

ROWS_PER_BLOCK = 1024
"""Vectors that are written together: a row group of a .parquet file."""


class Writer:
    """Writes texts and their vectors, [m, k] of the type that the metadata says, one part after the other."""

    def __init__(self, file: BinaryIO, metadata: VectorMetadata) -> None:
        self._file, self._metadata = file, metadata
        self.count = 0  # vectors that were written
        self._begin()

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        self._append(texts, vectors)
        self.count += len(vectors)

    def finish(self) -> None:
        """Complete the file."""

    def _begin(self) -> None:
        raise NotImplementedError

    def _append(self, texts: Sequence[str], vectors: Vectors) -> None:
        raise NotImplementedError


def write_parts(writer: Writer, texts: Sequence[str], vectors: Vectors) -> None:
    """Write texts and their vectors, `ROWS_PER_BLOCK` at a time."""
    for start in range(0, len(texts), ROWS_PER_BLOCK):
        part = slice(start, start + ROWS_PER_BLOCK)
        writer.write(texts[part], vectors[part])


@contextmanager
def writing_vectors(path: Path, metadata: VectorMetadata) -> Iterator[Writer]:
    """Write vectors part by part, in bounded memory; .parquet and .jsonl hold the texts too (`text`, `embedding`).

    The file appears when the block ends without an error. The metadata is in the schema of a .parquet file, beside a
    .npy file in FILE.npy.json, and in the first line of a .jsonl file.
    """
    with hidden_file(path, ELSEWHERE) as (file, publish):
        writer = WRITERS[path.suffix.lower()](file, metadata)
        try:
            yield writer
        except BaseException:
            with suppress(Exception):
                writer.finish()  # pyarrow complains of a file that is closed before its writer
            raise
        writer.finish()
        content = msgspec.structs.replace(metadata, vectors=writer.count).to_json() + b"\n"
        _publish_described(publish, path, content)


def _publish_described(publish: Callable[[], None], path: Path, description: bytes) -> None:
    """Give a file its name by `publish`, and write its metadata beside it if it is a .npy file.

    At no moment is there metadata of other vectors than those in the file: while the file is replaced, it has none.
    """
    sidecars = sidecars_of(path)
    with written_as(path, ELSEWHERE):
        for sidecar in sidecars:
            sidecar.unlink(missing_ok=True)
    publish()
    for sidecar in sidecars:
        replace_file(sidecar, description, ELSEWHERE, path)


def json_row(text: str, vector: Vectors) -> bytes:
    """Return one line of a .jsonl file, without its newline."""
    return msgspec.json.encode({"text": encodable(text), "embedding": json_numbers(vector)})


_TENS = np.array([float(f"1e{exponent}") for exponent in range(23)])
"""Powers of ten that float64 holds exactly."""

_DIGITS = range(6, 10)
"""Significant digits of decimals: all of six survive float32, and all of float32 survives nine."""


def json_numbers(values: Vectors) -> list[Any]:
    """Return numbers as lists of Python's, which print with the fewest digits that give the same float32 again."""
    if values.dtype != np.float32:
        return list(values.tolist())
    exact = values.astype(np.float64)
    size = np.abs(exact)
    left = (size >= 1e-13) & (size < 1e5)  # where the power of ten is exact
    numbers, places = exact.copy(), np.floor(np.log10(size, out=np.zeros_like(size), where=left)).astype(np.intp)
    for digits in _DIGITS:
        power = _TENS[np.where(left, digits - 1 - places, 0)]
        rounded = np.round(exact * power) / power
        same = left & (rounded.astype(np.float32) == values)
        numbers[same] = rounded[same]
        left &= ~same
    left |= (size != 0) & ~((size >= 1e-13) & (size < 1e5))
    numbers[left] = values[left].astype(np.str_).astype(np.float64)
    return list(numbers.tolist())


class _NpyWriter(Writer):
    """Writes [n, k]; numpy leaves room in the header for an n that is not known yet."""

    def _begin(self) -> None:
        shape = (self.count, self._metadata.columns)
        header = {"descr": self._metadata.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)

    def _append(self, texts: Sequence[str], vectors: Vectors) -> None:
        self._file.write(np.ascontiguousarray(vectors, self._metadata.dtype).tobytes())

    def finish(self) -> None:
        self._file.seek(0)
        self._begin()


class _JsonlWriter(Writer):
    def _begin(self) -> None:
        self._file.write(self._metadata.to_json() + b"\n")

    def _append(self, texts: Sequence[str], vectors: Vectors) -> None:
        self._file.writelines(json_row(text, vector) + b"\n" for text, vector in zip(texts, vectors, strict=True))


class _ParquetWriter(Writer):
    def _begin(self) -> None:
        pyarrow, parquet = import_parquet()
        metadata = self._metadata
        vector = pyarrow.list_(pyarrow.from_numpy_dtype(metadata.dtype), metadata.columns)
        columns = {"text": pyarrow.string(), "embedding": vector}
        self._schema = pyarrow.schema(columns, metadata={SPACE_KEY: metadata.space, KEY: metadata.to_json()})
        self._writer = parquet.ParquetWriter(self._file, self._schema)

    def _append(self, texts: Sequence[str], vectors: Vectors) -> None:
        pyarrow, _ = import_parquet()
        flat = pyarrow.array(np.ascontiguousarray(vectors, self._metadata.dtype).ravel())
        rows = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        columns = [pyarrow.array([encodable(text) for text in texts], pyarrow.string()), rows]
        self._writer.write_table(pyarrow.table(columns, schema=self._schema))

    def finish(self) -> None:
        self._writer.close()


WRITERS: dict[str, type[Writer]] = {".npy": _NpyWriter, ".parquet": _ParquetWriter, ".jsonl": _JsonlWriter}


def check_output(path: Path | None, force: bool = False) -> None:
    """Check that vectors can be written to `path` before they are computed.

    An empty file is replaced, any other only with `force`.
    """
    if path is None:
        return
    kind = path.suffix.lower()
    if kind not in WRITERS:
        raise UsageError(f"'{path}': unknown kind of file; wanted {', '.join(WRITERS)}")
    if kind_of_place(path.parent) != "directory":
        raise UsageError(f"'{path.parent}' is not a directory; create it first")
    check_replaceable(path, ELSEWHERE)  # before a loop of links is followed
    sidecars = sidecars_of(path)
    for sidecar in sidecars:
        check_replaceable(sidecar, ELSEWHERE)
    if kind == ".parquet":
        import_parquet()
    for place in () if force else (path, *sidecars):
        if place.is_file() and place.stat().st_size:
            raise UsageError(f"'{place}' exists; replace it with --force, or name another --out")
    check_file_place(path, ELSEWHERE)
