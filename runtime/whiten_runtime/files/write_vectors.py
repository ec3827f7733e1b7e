"""Write vectors and their metadata to .npy, .parquet or .jsonl; a file appears only when it is complete."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.steps import as_int8
from whiten_runtime.checks import encodable
from whiten_runtime.errors import UsageError
from whiten_runtime.files.replacing import replacing
from whiten_runtime.files.texts import import_parquet
from whiten_runtime.files.vector_metadata import KEY, SPACE_KEY, VectorMetadata, sidecar_of

Vectors = NDArray[Any]


def check_output(path: Path | None, header: bool = False) -> None:
    """Check that vectors can be written to `path` before they are computed.

    Args:
        path: the file; None for lines of JSON on stdout.
        header: whether a first line with the metadata is asked for.

    Raises:
        UsageError: the kind of file is unknown or takes no header, or its directory does not exist.
        WhitenError: a package that the kind of file needs is missing.
    """
    if path is None:
        return
    if path.suffix.lower() not in _WRITERS:
        raise UsageError(f"'{path}': unknown kind of file; wanted {', '.join(_WRITERS)}")
    if not path.parent.is_dir():
        raise UsageError(f"'{path.parent}' is not a directory; create it first")
    for place in (path, *([sidecar_of(path)] if path.suffix.lower() == ".npy" else [])):
        if place.is_dir():
            raise UsageError(f"'{place}' is a directory; name a file in it")
    if header and path.suffix.lower() != ".jsonl":
        raise UsageError(f"--header is for .jsonl, but '{path}' holds its metadata anyway; leave it out")
    if path.suffix.lower() == ".parquet":
        import_parquet()


class Writer(Protocol):
    """Writes texts and their vectors, [m, k] of the type that the metadata says, one part after the other."""

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Append texts and their vectors."""

    def finish(self) -> int:
        """Complete the file, and return the number of vectors in it."""


@contextmanager
def writing_vectors(path: Path, metadata: VectorMetadata, header: bool = False) -> Iterator[Writer]:
    """Write vectors part by part, in bounded memory; .parquet and .jsonl hold the texts too (`text`, `embedding`).

    The file appears when the block ends without an error. The metadata is in the schema of a .parquet file, beside a
    .npy file in FILE.npy.json, and in the first line of a .jsonl file, there only with `header` or for codes.
    """
    with replacing(path) as temporary:
        with temporary.open("xb") as file:
            writer = _WRITERS[path.suffix.lower()](file, metadata, header)
            try:
                yield writer
            except BaseException:
                with suppress(Exception):
                    writer.finish()  # pyarrow complains of a file that is closed before its writer
                raise
            count = writer.finish()
        if path.suffix.lower() != ".npy":
            temporary.replace(path)
            return
        sidecar = sidecar_of(path)
        with replacing(sidecar) as description:
            description.write_bytes(msgspec.structs.replace(metadata, vectors=count).to_json() + b"\n")
            # At no moment is there metadata of other vectors than those in the file.
            sidecar.unlink(missing_ok=True)
            temporary.replace(path)
            description.replace(sidecar)


def json_row(text: str, vector: Vectors) -> bytes:
    """Return one line of a .jsonl file, without its newline."""
    return msgspec.json.encode({"text": encodable(text), "embedding": vector.tolist()})


def as_stored(vectors: Vectors, metadata: VectorMetadata) -> Vectors:
    """Return vectors with the type that their metadata says, without loss.

    Raises:
        UsageError: the metadata says that they were rounded, but the vectors are not whole numbers from -127 to 127.
    """
    if metadata.vector_type == "int8":
        return as_int8(vectors)
    return np.asarray(vectors, metadata.dtype)


class _NpyWriter:
    """Writes [n, k]; numpy leaves room in the header for an n that is not known yet."""

    def __init__(self, file: BinaryIO, metadata: VectorMetadata, header: bool) -> None:
        self._file, self._metadata, self._count = file, metadata, 0
        self._write_header()

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        self._file.write(np.ascontiguousarray(as_stored(vectors, self._metadata)).tobytes())
        self._count += len(vectors)

    def finish(self) -> int:
        self._file.seek(0)
        self._write_header()
        return self._count

    def _write_header(self) -> None:
        shape = (self._count, self._metadata.columns)
        header = {"descr": self._metadata.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)


class _JsonlWriter:
    def __init__(self, file: BinaryIO, metadata: VectorMetadata, header: bool) -> None:
        self._file, self._metadata, self._count = file, metadata, 0
        if header or metadata.coded:  # nothing else says that the numbers are no coordinates
            file.write(metadata.to_json() + b"\n")

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        self._count += len(vectors)
        rows = as_stored(vectors, self._metadata)
        self._file.writelines(json_row(text, vector) + b"\n" for text, vector in zip(texts, rows, strict=True))

    def finish(self) -> int:
        return self._count


class _ParquetWriter:
    def __init__(self, file: BinaryIO, metadata: VectorMetadata, header: bool) -> None:
        self._pyarrow, parquet = import_parquet()
        self._metadata, self._count = metadata, 0
        number = self._pyarrow.from_numpy_dtype(metadata.dtype)
        vector = self._pyarrow.list_(number, metadata.columns)
        self._schema = self._pyarrow.schema(
            {"text": self._pyarrow.string(), "embedding": vector},
            metadata={SPACE_KEY: metadata.space, KEY: metadata.to_json()},
        )
        self._writer = parquet.ParquetWriter(file, self._schema)

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        self._count += len(vectors)
        flat = self._pyarrow.array(np.ascontiguousarray(as_stored(vectors, self._metadata)).ravel())
        rows = self._pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        column = self._pyarrow.array([encodable(text) for text in texts], self._pyarrow.string())
        self._writer.write_table(self._pyarrow.table([column, rows], schema=self._schema))

    def finish(self) -> int:
        self._writer.close()
        return self._count


_WRITERS: dict[str, Callable[[BinaryIO, VectorMetadata, bool], Writer]] = {
    ".npy": _NpyWriter,
    ".parquet": _ParquetWriter,
    ".jsonl": _JsonlWriter,
}
