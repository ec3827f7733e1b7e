"""Check before the work that vectors can be written to a file, and that nothing else is lost by it."""

import json
from pathlib import Path
from typing import Any

from whiten_runtime.errors import UsageError
from whiten_runtime.files.places import check_file_place
from whiten_runtime.files.texts import import_parquet
from whiten_runtime.files.vector_metadata import KEY, LONGEST_HEADER, UNFINISHED, is_header, sidecars_of
from whiten_runtime.files.write_vectors import ELSEWHERE, WRITERS

_ROW = {"text", "embedding"}


def check_output(path: Path | None, header: bool = False, force: bool = False) -> None:
    """Check that vectors can be written to `path` before they are computed.

    A file of vectors that whiten wrote is replaced, and so is an empty file; any other only with `force`.
    """
    if path is None:
        return
    kind = path.suffix.lower()
    if kind not in WRITERS:
        raise UsageError(f"'{path}': unknown kind of file; wanted {', '.join(WRITERS)}")
    if not path.parent.is_dir():
        raise UsageError(f"'{path.parent}' is not a directory; create it first")
    sidecars = sidecars_of(path)
    for place in (path, *sidecars):
        if place.is_dir():
            raise UsageError(f"'{place}' is a directory; name a file in it")
        if place.exists() and not place.is_file():
            raise UsageError(f"'{place}' is not a regular file; name another --out")
    if header and kind != ".jsonl":
        raise UsageError(f"--header is for .jsonl, but '{path}' holds its metadata anyway; leave it out")
    if kind == ".parquet":
        import_parquet()
    if not force:
        for place, known in ((path, is_written_by_whiten), *((sidecar, _is_sidecar) for sidecar in sidecars)):
            if place.is_file() and place.stat().st_size and not known(place):
                raise UsageError(
                    f"'{place}' exists and is not known to be a file of vectors that whiten wrote; replace it with "
                    "--force, or name another --out"
                )
    check_file_place(path, ELSEWHERE)


def is_written_by_whiten(path: Path) -> bool:
    """Return whether a file of vectors has what `whiten embed` writes: metadata, or rows of text and embedding."""
    check = {".npy": _has_sidecar, ".parquet": _has_schema, ".jsonl": _has_rows}[path.suffix.lower()]
    try:
        return check(path)
    except (OSError, ValueError, RecursionError):
        return False


def _has_sidecar(path: Path) -> bool:
    return any(map(_is_sidecar, sidecars_of(path)))


def _is_sidecar(path: Path) -> bool:
    try:
        content = path.read_bytes()
        return content == UNFINISHED or _is_object_with(json.loads(content), KEY)
    except (OSError, ValueError, RecursionError):
        return False


def _has_schema(path: Path) -> bool:
    pyarrow, parquet = import_parquet()
    try:
        return KEY.encode() in (parquet.read_schema(path).metadata or {})
    except pyarrow.ArrowException:
        return False


def _has_rows(path: Path) -> bool:
    with path.open("rb") as stream:
        row = json.loads(stream.readline(LONGEST_HEADER))
    return is_header(row) or (isinstance(row, dict) and set(row) == _ROW)


def _is_object_with(document: Any, key: str) -> bool:
    return isinstance(document, dict) and key in document
