"""Write and read the metadata of a file of vectors: the space they are in, and how they were made."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.records import AlignmentRecord, VectorPrecision, is_space
from whiten_runtime.bundle.space import space_of
from whiten_runtime.errors import DataError, check_file
from whiten_runtime.files.parquet import import_parquet

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
