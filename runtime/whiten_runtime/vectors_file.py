"""Writing vectors to .npy, .parquet or .jsonl; a file appears only when it is complete."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import UsageError
from whiten_runtime.texts import import_parquet
from whiten_runtime.tokenizer import encodable

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


def write_vectors(path: Path, texts: Sequence[str], vectors: Vectors) -> None:
    """Write vectors, float32 [n, k]; .parquet and .jsonl hold the texts too (`text`, `embedding`)."""
    with _replacing(path) as file:
        _WRITERS[path.suffix.lower()](file, [encodable(text) for text in texts], vectors)


def json_row(text: str, vector: Vectors) -> bytes:
    """One line of a .jsonl file, without its newline."""
    return msgspec.json.encode({"text": encodable(text), "embedding": vector.tolist()})


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_npy(file: BinaryIO, texts: Sequence[str], vectors: Vectors) -> None:
    np.save(file, vectors, allow_pickle=False)


def _write_jsonl(file: BinaryIO, texts: Sequence[str], vectors: Vectors) -> None:
    file.writelines(json_row(text, vector) + b"\n" for text, vector in zip(texts, vectors, strict=True))


def _write_parquet(file: BinaryIO, texts: Sequence[str], vectors: Vectors) -> None:
    pyarrow, parquet = import_parquet()
    flat = pyarrow.array(np.ascontiguousarray(vectors).ravel())
    rows = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    parquet.write_table(pyarrow.table({"text": pyarrow.array(texts, pyarrow.string()), "embedding": rows}), file)


_WRITERS: dict[str, Callable[[BinaryIO, Sequence[str], Vectors], None]] = {
    ".npy": _write_npy,
    ".parquet": _write_parquet,
    ".jsonl": _write_jsonl,
}
