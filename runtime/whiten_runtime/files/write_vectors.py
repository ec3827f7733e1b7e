"""Write vectors to .npy, .parquet or .jsonl; a file appears only when it is complete."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_runtime.checks import encodable
from whiten_runtime.errors import UsageError
from whiten_runtime.files.texts import import_parquet

Vectors = NDArray[np.float32]


def check_output(path: Path) -> None:
    """Check that vectors can be written to `path` before they are computed.

    Raises:
        UsageError: the kind of file is unknown, or its directory does not exist.
        WhitenError: a package that the kind of file needs is missing.
    """
    if path.suffix.lower() not in _WRITERS:
        raise UsageError(f"'{path}': unknown kind of file; wanted {', '.join(_WRITERS)}")
    if not path.parent.is_dir():
        raise UsageError(f"'{path.parent}' is not a directory; create it first")
    if path.is_dir():
        raise UsageError(f"'{path}' is a directory; name a file in it")
    if path.suffix.lower() == ".parquet":
        import_parquet()


class Writer(Protocol):
    """Writes texts and their vectors, float32 [m, k], one part after the other."""

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Append texts and their vectors."""

    def finish(self) -> None:
        """Complete the file."""


@contextmanager
def writing_vectors(path: Path, dimension: int) -> Iterator[Writer]:
    """Write vectors part by part, in bounded memory; .parquet and .jsonl hold the texts too (`text`, `embedding`).

    The file appears when the block ends without an error.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            writer = _WRITERS[path.suffix.lower()](file, dimension)
            yield writer
            writer.finish()
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def json_row(text: str, vector: Vectors) -> bytes:
    """Return one line of a .jsonl file, without its newline."""
    return msgspec.json.encode({"text": encodable(text), "embedding": vector.tolist()})


class _NpyWriter:
    """Writes float32 [n, k]; numpy leaves room in the header for an n that is not known yet."""

    def __init__(self, file: BinaryIO, dimension: int) -> None:
        self._file, self._dimension, self._count = file, dimension, 0
        self._write_header()

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        self._file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
        self._count += len(vectors)

    def finish(self) -> None:
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (self._count, self._dimension)}
        np.lib.format.write_array_header_1_0(self._file, header)


class _JsonlWriter:
    def __init__(self, file: BinaryIO, dimension: int) -> None:
        self._file = file

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        self._file.writelines(json_row(text, vector) + b"\n" for text, vector in zip(texts, vectors, strict=True))

    def finish(self) -> None:
        pass


class _ParquetWriter:
    def __init__(self, file: BinaryIO, dimension: int) -> None:
        self._pyarrow, parquet = import_parquet()
        vector = self._pyarrow.list_(self._pyarrow.float32(), dimension)
        self._schema = self._pyarrow.schema({"text": self._pyarrow.string(), "embedding": vector})
        self._writer = parquet.ParquetWriter(file, self._schema)

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        flat = self._pyarrow.array(np.ascontiguousarray(vectors).ravel())
        rows = self._pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        column = self._pyarrow.array([encodable(text) for text in texts], self._pyarrow.string())
        self._writer.write_table(self._pyarrow.table([column, rows], schema=self._schema))

    def finish(self) -> None:
        self._writer.close()


_WRITERS: dict[str, Callable[[BinaryIO, int], Writer]] = {
    ".npy": _NpyWriter,
    ".parquet": _ParquetWriter,
    ".jsonl": _JsonlWriter,
}
