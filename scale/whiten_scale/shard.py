"""Embed one shard: some pieces of the input become one Parquet file, which appears whole or not at all."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_runtime.encoder import Encoder, embedder_of
from whiten_runtime.errors import DataError, NoVectorError, UsageError
from whiten_runtime.files.rows import import_parquet
from whiten_runtime.files.vectors import KEY, SPACE_KEY, VectorMetadata
from whiten_runtime.opened_bundle import encode_options
from whiten_runtime.ort.process import map_in_threads
from whiten_scale.places import Folder, opened
from whiten_scale.plan import READERS, Job, read_job
from whiten_scale.readers import WrongRow, read_pieces
from whiten_whitening.codes import Coder

StoredType = Literal["float32", "float16", "int8", "codes"]

CODER_KEY = "whiten.coder"
"""Key of the id of the coder in the schema of a Parquet file."""

ERRORS_FILE = "_errors.jsonl"

SHARD_KEY = "whiten.shard"
"""Key of a shard's description in the metadata of its file."""


_ANY_TEXT = "A text."
"""Text that is embedded before all others: a type that the bundle cannot give is refused before the work."""

_BEYOND = "has a coordinate beyond 65,504, the largest of float16 (--vector-type float32 or --normalize take it)"


class VectorChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Says what is stored of each text."""

    vector_type: StoredType = "float32"
    normalize: bool = False
    truncate_dim: int | None = None
    prompt_name: str | None = None
    prompt: str | None = None
    bytes: int | None = None  # of a code; None for a third of the dimensions

    def shown(self) -> dict[str, str]:
        """Return the options by name, as they are written, without those that were not named: any text can be one."""
        return {name: str(value) for name, value in msgspec.to_builtins(self).items() if value is not None}


class Vectors:
    """Computes what is stored of texts, with one thread."""

    def __init__(self, bundle: Path, choice: VectorChoice) -> None:
        if choice.vector_type == "codes" and (choice.normalize or choice.truncate_dim):
            raise UsageError(
                "codes are of whole vectors, whatever their norm; leave out --normalize and --truncate-dim"
            )
        if choice.vector_type != "codes" and choice.bytes is not None:
            raise UsageError(f"--bytes is for --vector-type codes, not {choice.vector_type}; leave it out")
        self.encoder = Encoder(bundle, threads=1)
        self._choice = choice
        self._embedder = embedder_of(self.encoder)
        precision: Literal["float32", "int8"] = "int8" if choice.vector_type == "int8" else "float32"
        self._options = encode_options(
            self.encoder,
            prompt_name=choice.prompt_name,
            prompt=choice.prompt,
            normalize_embeddings=choice.normalize,
            truncate_dim=choice.truncate_dim,
            precision=precision,
        )
        self._metadata = VectorMetadata.of(
            self.encoder.manifest, choice.normalize, choice.truncate_dim, choice.prompt_name, choice.prompt, precision
        )
        self._coder = Coder.of(bundle, choice.bytes) if choice.vector_type == "codes" else None
        self.window = self._embedder.engine.schedule.window
        try:
            self.of([_ANY_TEXT])
        except NoVectorError as error:
            raise DataError(f"{bundle}: {_ANY_TEXT!r} {error.failures[0]}") from None

    def bounded(self, table: Any) -> Any:
        """Return a table of `read_pieces` with no more of its texts than is read, so that long ones take no memory."""
        pyarrow, _ = import_parquet()
        most = self._embedder.max_characters
        if table.column(0).nbytes <= most:  # of texts that are short together: no need to look at each
            return table
        read, field = self._embedder.part_read(most + 1), table.schema.field(0)  # one more: they count as cut
        texts = [text[read] for text in table.column(0).to_pylist()]
        return table.set_column(0, field, pyarrow.array(texts, field.type))

    @property
    def truncated(self) -> int:
        """Return the number of texts that were cut so far."""
        return self._embedder.truncated

    def of(self, texts: Sequence[str]) -> NDArray[Any]:
        """Return what is stored of texts, [n, width]."""
        rows = self._embedder.embed(texts, self._options)
        if self._coder is not None:
            return self._coder.encode_array(rows)
        if self._choice.vector_type != "float16":
            return np.ascontiguousarray(rows)
        with np.errstate(over="ignore"):
            halves = rows.astype(np.float16)
        if bad := np.flatnonzero(~np.isfinite(halves).all(axis=1)).tolist():
            raise NoVectorError(dict.fromkeys(bad, _BEYOND))
        return halves

    def schema(self, job: Job) -> Any:
        """Return the schema of a shard's file: the id or file and row, what is carried, then the vector or code.

        It says of the vectors what `whiten embed` says of them.
        """
        pyarrow, _ = import_parquet()
        metadata = {SPACE_KEY: self._metadata.space.encode()}
        if self._coder is not None:
            metadata[CODER_KEY] = self._coder.id.encode()
            last = ("code", pyarrow.list_(pyarrow.uint8(), self._coder.bytes))
        else:
            metadata[KEY] = self._metadata.to_json()
            number = np.dtype(np.float16) if self._choice.vector_type == "float16" else self._metadata.dtype
            last = ("embedding", pyarrow.list_(pyarrow.from_numpy_dtype(number), self._metadata.columns))
        places = [] if job.choice.id else [("file", pyarrow.string()), ("row", pyarrow.int64())]
        fields = [*(pyarrow.field(*place, nullable=False) for place in places), *job.carried]
        return pyarrow.schema([*fields, pyarrow.field(*last, nullable=False)], metadata=metadata)


class ShardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Finished shard, in the metadata of its file."""

    key: str  # `Job.shard_key`
    records: int  # that it was made of
    rows: int  # of the file
    blank: int  # records that are blank lines of .jsonl, .csv and .tsv files
    truncated: int = 0  # rows whose texts were cut; versions before 0.5 did not count them
    wrong: tuple[WrongRow, ...]


def shard_name(number: int) -> str:
    """Return the name of a shard's file."""
    return f"part-{number:06d}.parquet"


def _shard_names(job: Job) -> set[str]:
    return set(map(shard_name, range(len(job.shards))))


def embed_shard(vectors: Vectors, job: Job, number: int, out: Folder, record_errors: bool = False) -> None:
    """Embed a shard, unless its file is there.

    Windows of texts begin with the shard, so that the bytes of the file depend on nothing else. With `record_errors`,
    wrong rows are left out and described in the file.
    """
    name = shard_name(number)
    if out.has(name):
        check_mine(read_record(out, name), job, number, out)
        return
    _, parquet = import_parquet()
    schema = vectors.schema(job)
    wrong, records, rows, truncated = list[WrongRow](), 0, 0, 0
    order = list(dict.fromkeys(job.files[piece.file].name for piece in job.shards[number]))

    def tables() -> Iterator[Any]:
        nonlocal records
        for chunk in read_pieces(job.files, job.shards[number], job.carried):
            if chunk.wrong and not record_errors:
                raise chunk.wrong[0].error()
            wrong.extend(chunk.wrong)
            records += chunk.records
            yield vectors.bounded(chunk.table)

    with out.writing(name) as file:
        with parquet.ParquetWriter(file, schema, **_encoding(schema)) as writer:
            for window in _windows(tables(), vectors.window):
                table, failed, cut = _embedded(window, vectors, schema)
                if failed and not record_errors:
                    raise failed[0].error()
                wrong.extend(failed)
                if len(table):
                    writer.write_table(table, row_group_size=len(table))
                rows += len(table)
                truncated += cut
            record = ShardRecord(
                key=job.shard_key(number),
                records=records,
                rows=rows,
                blank=records - rows - len(wrong),
                truncated=truncated,
                wrong=tuple(sorted(wrong, key=lambda row: (order.index(row.file), row.row))),
            )
            writer.add_key_value_metadata({SHARD_KEY: msgspec.json.encode(record).decode()})
        if records != job.records(number):
            raise DataError(f"{out.place(name)}: {records} records were read, but {job.records(number)} planned")


def _windows(tables: Iterable[Any], size: int) -> Iterator[Any]:
    """Yield all rows in tables of `size` rows; the last one is smaller."""
    pyarrow, _ = import_parquet()
    waiting = None
    for table in tables:
        waiting = table if waiting is None else pyarrow.concat_tables([waiting, table])
        while len(waiting) >= size:
            yield waiting.slice(0, size)
            waiting = waiting.slice(size)
    if waiting:
        yield waiting


def _embedded(window: Any, vectors: Vectors, schema: Any) -> tuple[Any, list[WrongRow], int]:
    """Return a table of the output for a window of the input, the rows that get no vector, and how many were cut."""
    pyarrow, _ = import_parquet()
    failed = list[WrongRow]()
    while True:
        before = vectors.truncated
        try:
            rows = vectors.of(window.column(0).to_pylist())
            break
        except NoVectorError as error:
            failures = error.failures
        for index in sorted(failures):
            file, row = (window.column(place)[index].as_py() for place in (1, 2))
            failed.append(WrongRow(file, row, str(failures[index])))
        others = [index for index in range(len(window)) if index not in failures]
        window = window.take(pyarrow.array(others, pyarrow.int64()))
    last = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.ravel()), rows.shape[1])
    first = window.columns[1 + window.num_columns - len(schema) :]
    return pyarrow.table([*first, last], schema=schema), failed, vectors.truncated - before


def _encoding(schema: Any) -> dict[str, Any]:
    """Return how columns are written: numbers of vectors as they are, for they hardly compress."""
    *others, last = schema.names
    kinds = dict.fromkeys(others, "zstd") | {f"{last}.list.element": "none"}
    return {"compression": kinds, "use_dictionary": others, "write_statistics": others, "write_page_checksum": True}


def read_record(out: Folder, name: str) -> ShardRecord | None:
    """Return the description of a shard's file; None if the file has none."""
    pyarrow, parquet = import_parquet()
    with opened(out.place(name)) as file:
        try:
            content = (parquet.read_metadata(file).metadata or {}).get(SHARD_KEY.encode())
            return None if content is None else msgspec.json.decode(content, type=ShardRecord)
        except (pyarrow.ArrowException, msgspec.DecodeError):
            return None


def check_mine(record: ShardRecord | None, job: Job, number: int, out: Folder) -> ShardRecord:
    """Return the description of a shard's file, if it is of this job."""
    if record is None or record.key != job.shard_key(number):
        what = "is no shard that whiten has written" if record is None else "is a shard of another job"
        raise UsageError(f"{out.place(shard_name(number))}: {what}; move it away, or name another --out")
    return record


def finished(job: Job, out: Folder, numbers: Iterable[int]) -> dict[int, ShardRecord]:
    """Return the descriptions of those shards whose files are there, by number; files of others are refused."""
    names = out.names()
    strange = {name for name in names if name.endswith(".parquet") and not name.startswith(".")} - _shard_names(job)
    if strange:
        strange -= _shard_names(read_job(out) or job)  # another process may have let the job grow meanwhile
    if strange:
        raise UsageError(f"{out.place(min(strange))}: is not part of this job; move it away, or name another --out")

    def read(number: int) -> tuple[int, ShardRecord]:
        return number, check_mine(read_record(out, shard_name(number)), job, number, out)

    there = [number for number in numbers if shard_name(number) in names]
    return dict(map_in_threads(read, there, READERS, "whiten-shards"))


def write_errors(out: Folder, records: dict[int, ShardRecord]) -> int:
    """Write `_errors.jsonl` with all wrong rows in the order of the plan; return their number. None: no file."""
    rows = [msgspec.json.encode(row) for number in sorted(records) for row in records[number].wrong]
    if rows:
        out.write(ERRORS_FILE, b"\n".join(rows) + b"\n")
    return len(rows)
