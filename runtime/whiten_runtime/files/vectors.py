"""Read and write files of vectors with their metadata, some rows at a time: .npy, .parquet and .jsonl."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.manifest import AlignmentRecord, Manifest, VectorPrecision, is_space
from whiten_runtime.bundle.space import space_of
from whiten_runtime.errors import DataError, UsageError, check_file, encodable, kind_of_place, one_line
from whiten_runtime.files.replacing import check_file_place, check_replaceable, hidden_file, replace_file, written_as
from whiten_runtime.files.rows import (
    WrongRowError,
    choose_column,
    import_parquet,
    line_text,
    parse_json,
    parse_records,
    records_of,
    rows_at_once,
    type_of,
)

KEY = "whiten"
"""Key of the metadata in a header line, a sidecar and a Parquet file."""

SPACE_KEY = "whiten.space"
"""Key under which the schema of a Parquet file has only the id."""

LONGEST_HEADER = 1 << 20
"""Number of bytes of a .jsonl file's first line beyond which it is no header."""


class VectorMetadata(msgspec.Struct, frozen=True, kw_only=True):
    space: str
    """Id of the space of the vectors."""
    bundle: str
    """Name of the bundle that computed them."""
    dimension: int
    """Number of coordinates of a vector."""
    precision: VectorPrecision | msgspec.UnsetType = msgspec.UNSET
    """Precision of the numbers; absent for float32. With "binary" and "ubinary", a byte holds the signs of 8."""
    truncated_from: int | None = None
    """Number of coordinates that the bundle gives, if only the first ones were kept; otherwise None."""
    normalized: bool
    """Whether each vector was divided by its L2 norm."""
    prompt_name: str | None = None
    """Name of the prompt that every text got; None for no prompt, or one without a name."""
    vectors: int | None = None
    """Number of vectors; None where the file itself says it, or where it was not known yet."""
    alignment: AlignmentRecord | msgspec.UnsetType = msgspec.UNSET
    """Space that the bundle's whitening was aligned with, and how close its vectors are to these."""

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        normalize: bool = False,
        truncate_dim: int | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        precision: VectorPrecision = "float32",
    ) -> "VectorMetadata":
        default = manifest.default_prompt_name if prompt is None else None
        alignment = manifest.whitening.alignment if manifest.whitening else None
        return cls(
            space=space_of(manifest),
            bundle=manifest.name,
            dimension=truncate_dim or manifest.dimension,
            precision=msgspec.UNSET if precision == "float32" else precision,
            truncated_from=None if truncate_dim in (None, manifest.dimension) else manifest.dimension,
            normalized=normalize or manifest.normalize,
            prompt_name=prompt_name or default,
            alignment=msgspec.UNSET if alignment is None else alignment,
        )

    @property
    def coded(self) -> bool:
        return self.precision not in (msgspec.UNSET, "float32")

    @property
    def columns(self) -> int:
        """Return the numbers that the file has for a vector: one for 8 coordinates where only signs are kept."""
        return (self.dimension + 7) // 8 if self.precision in ("binary", "ubinary") else self.dimension

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Return the type of the numbers in the file: float32, int8 or uint8, little-endian."""
        if not self.coded:
            return np.dtype("<f4")
        return np.dtype(np.int8 if self.precision in ("int8", "binary") else np.uint8)

    def to_json(self) -> bytes:
        """Serialise as one line without a newline: the header of a .jsonl file, and the content of a sidecar."""
        return msgspec.json.encode({KEY: self})


def sidecar_of(path: Path) -> Path:
    """Return the file that holds the metadata of a .npy file: FILE.npy.json."""
    return path.with_name(f"{path.name}.json")


def sidecars_of(path: Path) -> list[Path]:
    """Return the files that hold the metadata of vectors that are written to `path`: none if it is no .npy file.

    If `path` is a link to another .npy file, both names have one, since the vectors can be read by either.
    """
    names = [place for place in (path, path.resolve()) if place.suffix.lower() == ".npy"]
    if path.suffix.lower() != ".npy":
        return []
    return list({sidecar.resolve(): sidecar for sidecar in map(sidecar_of, names)}.values())


def is_header(row: object) -> bool:
    return isinstance(row, dict) and list(row) == [KEY] and isinstance(row[KEY], dict)


def read_metadata(path: Path) -> VectorMetadata | None:
    """Read the metadata of a file of vectors; None if it has none.

    It is in the sidecar of a .npy file, the schema of a .parquet file, and the first line of a .jsonl file.
    """
    check_file(path, "wanted a file of vectors")
    read = {".npy": _of_npy, ".parquet": _of_parquet, ".jsonl": _of_jsonl}.get(path.suffix.lower())
    return None if read is None else read(path)


def _of_npy(path: Path) -> VectorMetadata | None:
    sidecar = sidecar_of(path)
    if not sidecar.is_file():
        return None
    metadata = decoded(sidecar.read_bytes(), sidecar)
    if metadata is None:
        return None
    table = map_npy(path)
    if table is not None and table.shape != (metadata.vectors, metadata.columns):
        raise DataError(
            f"{sidecar}: is of [{metadata.vectors}, {metadata.columns}] vectors, but {path.name} holds "
            f"{list(table.shape)}; delete it, or embed the texts again"
        )
    return metadata


def load_npy(path: Path) -> Any:
    """Map what is in a .npy file; numpy's reader of headers raises errors without a common base class."""
    with np.errstate(over="ignore"):  # of shapes that no file has
        return np.load(path, mmap_mode="r", allow_pickle=False)


def map_npy(path: Path) -> NDArray[Any] | None:
    """Return the array of a .npy file without reading it; None if there is none: its reader says what is wrong."""
    try:
        table = load_npy(path)
    except Exception:
        return None
    return table if isinstance(table, np.ndarray) else None


def _of_parquet(path: Path) -> VectorMetadata | None:
    pyarrow, parquet = import_parquet()
    try:
        metadata = parquet.read_schema(path).metadata or {}
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a parquet file ({error})") from None
    content = metadata.get(KEY.encode())
    return None if content is None else decoded(content, path)


def _of_jsonl(path: Path) -> VectorMetadata | None:
    with path.open("rb") as stream:
        line = stream.readline(LONGEST_HEADER)
    try:
        return decoded(line, path) if is_header(json.loads(line)) else None
    except (ValueError, RecursionError):
        return None


def decoded(content: bytes, path: Path) -> VectorMetadata | None:
    """Decode an object with the metadata; None if the object is of another program."""
    try:
        document = json.loads(content)
        if not isinstance(document, dict) or KEY not in document:
            return None
        metadata = msgspec.convert(document[KEY], VectorMetadata)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise DataError(f"{path}: its metadata is damaged ({error}); embed the texts again") from None
    if not is_space(metadata.space):
        raise DataError(f"{path}: its space is {metadata.space!r}, which is no id of one; embed the texts again")
    return metadata


Rows = NDArray[np.float32]

USUAL_COLUMNS = ("embedding", "vector")
"""Columns that are taken when the caller names none."""

_ROWS_PER_BLOCK = 4096


def read_vectors(path: str | Path, column: str | None = None) -> Iterator[Rows]:
    """Yield the vectors of a file in order, float32 [m, d] with m up to some thousands.

    A .npy file holds [n, d] and is not read as a whole. A .parquet file has a column of lists. Each line of a .jsonl
    file is a list, or an object with a list; a first line with metadata is skipped.
    """
    file = Path(path)
    read = _READERS.get(file.suffix.lower())
    if read is None:
        raise UsageError(f"'{file}': unknown kind of file for vectors; wanted {', '.join(_READERS)}")
    check_file(file, "wanted a file of vectors")
    _check_precision(file)
    start, width = 0, None
    for rows in read(file, column):
        if not len(rows):
            continue
        if rows.ndim != 2 or not rows.shape[1] or (width is not None and rows.shape[1] != width):
            raise DataError(f"{file}: vector {start + 1} has shape {rows.shape[1:]}; wanted one length throughout")
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            raise DataError(f"{file}: vector {start + int(finite.argmin()) + 1} is not finite; leave it out")
        width = rows.shape[1]
        start += len(rows)
        yield rows


def _check_precision(file: Path) -> None:
    """Check that a file does not say that its vectors are quantised: their numbers are steps of ranges, or signs.

    A .npy file of 8 bits that says nothing is taken for one of codes.
    """
    metadata = read_metadata(file)
    table = map_npy(file) if metadata is None and file.suffix.lower() == ".npy" else None
    if table is not None and table.dtype in (np.int8, np.uint8):
        raise DataError(
            f"{file}: holds {table.dtype}, as codes of precision int8, uint8, binary or ubinary, and no "
            f"{sidecar_of(file).name} is beside it to say what they are; copy it too, embed again, or convert numbers "
            "that are coordinates with astype('float32')"
        )
    if metadata is not None and isinstance(metadata.precision, str) and metadata.precision != "float32":
        raise DataError(f"{file}: holds vectors of precision {metadata.precision}; wanted float32, so embed again")


def _read_npy(path: Path, column: str | None) -> Iterator[Rows]:
    if column is not None:
        raise UsageError(f"'{path}' has no column '{column}'; leave the column out")
    try:
        table = load_npy(path)
    except Exception as error:
        raise DataError(f"{path}: {_refusal(error)}") from None
    if not isinstance(table, np.ndarray):
        raise DataError(f"{path}: holds several arrays; wanted one, as numpy.save writes it")
    if table.ndim != 2 or table.dtype.kind not in "fiu":
        raise DataError(f"{path}: holds {table.dtype} {table.shape}; wanted numbers [n, d]")
    for start in range(0, len(table), _ROWS_PER_BLOCK):
        with np.errstate(over="ignore"):  # a value that is too large becomes infinite, and is refused
            rows = np.asarray(table[start : start + _ROWS_PER_BLOCK], np.float32)
        yield rows


def _read_parquet(path: Path, column: str | None) -> Iterator[Rows]:
    pyarrow, parquet = import_parquet()
    try:
        file = parquet.ParquetFile(path)
        chosen = choose_column(column, file.schema_arrow.names, str(path), USUAL_COLUMNS)
        start = 1
        for batch in file.iter_batches(batch_size=rows_at_once(file), columns=[chosen]):
            rows = range(start, start + len(batch))
            yield _of_lists(batch.column(0), f"{path}: column '{chosen}'", rows)
            start = rows.stop
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a parquet file ({error})") from None


def _of_lists(column: Any, place: str, rows: Sequence[int]) -> Rows:
    """Return the vectors of a column of lists; of one length, without nulls, as a view where they are float32."""
    pyarrow, _ = import_parquet()
    kinds, kind = pyarrow.types, column.type
    if kinds.is_fixed_size_list(kind) or kinds.is_list(kind) or kinds.is_large_list(kind):
        numbers, count = column.flatten(), len(column)
        numeric = kinds.is_floating(numbers.type) or kinds.is_integer(numbers.type)
        widths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if numeric and not column.null_count and not numbers.null_count and len(widths) == 1:
            with np.errstate(over="ignore"):
                return np.asarray(numbers.to_numpy(zero_copy_only=False), np.float32).reshape(count, int(widths[0]))
    values = column.to_pylist()
    for row, value in zip(rows, values, strict=True):
        if not isinstance(value, list):
            raise DataError(f"{place}: row {row} holds {type_of(value)}; wanted a list of numbers")
        for number in value:
            if not isinstance(number, Real | Decimal) or isinstance(number, bool):
                raise DataError(f"{place}: row {row} holds a list with {type_of(number)}; wanted numbers")
    return _as_rows(values, place, "row", rows)


def _read_jsonl(path: Path, column: str | None) -> Iterator[Rows]:
    chosen = column

    def read(row: int, lines: list[bytes]) -> list[Any] | None:
        nonlocal chosen
        text = line_text(lines[0], row)
        if not text.strip():
            return None
        value = parse_json(text)
        if row == 1 and is_header(value):
            return None
        if isinstance(value, dict):
            chosen = choose_column(chosen, list(value), f"{path}: line {row}", USUAL_COLUMNS)
            value = value[chosen]
        if not isinstance(value, list) or not set(map(type, value)) <= {int, float}:
            raise WrongRowError("holds something other than one list of numbers")
        return value

    with path.open("rb") as stream:
        rows = parse_records(records_of(stream, str(path), "jsonl"), str(path), read)
        while part := list(islice(rows, _ROWS_PER_BLOCK)):
            lines, vectors = zip(*part, strict=True)
            yield _as_rows(vectors, str(path), "line", lines)


def _as_rows(values: Sequence[list[Any]], place: str, word: str, rows: Sequence[int]) -> Rows:
    """Return vectors that are lists of numbers; `rows` are their numbers in a message, behind a word."""
    width = len(values[0])
    for row, value in zip(rows, values, strict=True):
        if len(value) != width:
            message = f"{word} {row} has {len(value)} numbers, but {word} {rows[0]} has {width}; wanted one length"
            raise DataError(f"{place}: {message}")
    try:
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(np.float32)
    except OverflowError as error:
        raise DataError(f"{place}: holds a number that is too large ({error})") from None


_READERS: dict[str, Callable[[Path, str | None], Iterator[Rows]]] = {
    ".npy": _read_npy,
    ".parquet": _read_parquet,
    ".jsonl": _read_jsonl,
}


def _refusal(error: Exception) -> str:
    """Return what is wrong with a .npy file; numpy's own words for objects tell how to run them."""
    text = one_line(error)
    if "pickle" in text or "Python objects" in text:
        return "not a .npy file with numbers: it holds Python objects, or no array; write it with numpy.save"
    return f"not a .npy file ({text})"


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
