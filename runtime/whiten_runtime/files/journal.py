"""Keep texts and vectors for a .parquet file, which cannot be continued once its program has ended, in a journal.

A journal is a sequence of record batches in Arrow's IPC format, each preceded by its number of bytes.
"""

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from whiten_runtime.errors import DataError
from whiten_runtime.files.texts import import_parquet
from whiten_runtime.files.vector_metadata import VectorMetadata
from whiten_runtime.files.write_vectors import Output, Vectors, columns_of, schema_of

_LENGTH = 8


class JournalWriter:
    """Appends parts of texts and vectors to a journal."""

    def __init__(self, file: Output, metadata: VectorMetadata) -> None:
        self._pyarrow, _ = import_parquet()
        self._file, self._metadata, self._schema = file, metadata, schema_of(metadata)
        self._count = 0

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Append texts and their vectors."""
        columns = columns_of(texts, vectors, self._metadata)
        content = self._pyarrow.record_batch(columns, schema=self._schema).serialize()
        self._file.write(content.size.to_bytes(_LENGTH, "little"))
        self._file.write(content)
        self._count += len(texts)

    def finish(self) -> int:
        """Return the number of vectors that were appended."""
        return self._count


def to_parquet(journal: BinaryIO, file: BinaryIO, metadata: VectorMetadata) -> None:
    """Write what a journal holds as a .parquet file, each part as a row group.

    Raises:
        DataError: the journal is damaged.
    """
    pyarrow, parquet = import_parquet()
    schema = schema_of(metadata)
    with parquet.ParquetWriter(file, schema) as writer:
        for content in _parts(journal):
            try:
                batch = pyarrow.ipc.read_record_batch(pyarrow.py_buffer(content), schema)
            except pyarrow.ArrowException as error:
                raise DataError(f"{journal.name}: is damaged ({error}); run again with --restart") from None
            writer.write_table(pyarrow.Table.from_batches([batch]))


def _parts(journal: BinaryIO) -> Iterator[Any]:
    journal.seek(0)
    while length := journal.read(_LENGTH):
        size = int.from_bytes(length, "little")
        content = journal.read(size)
        if len(content) != size:
            raise DataError(f"{journal.name}: ends within a part; run again with --restart")
        yield content
