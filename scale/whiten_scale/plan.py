"""Represent jobs: which records of which files become which output file.

A plan grows: `_plan.json` has the files that a job began with, `_plan-0001.json` and so on those that came later. What
was planned once stays as it is, and so do its shards.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib.metadata import version
from itertools import accumulate, count
from typing import Any, Literal, TypeVar

import msgspec

from whiten_runtime.errors import UsageError
from whiten_runtime.files.rows import import_parquet
from whiten_runtime.ort.session import import_onnxruntime
from whiten_scale.places import Folder
from whiten_scale.readers import ColumnChoice, InputFile, Piece

PLAN_FILE = "_plan.json"


def versions() -> dict[str, str]:
    """Return the versions of what computes vectors."""
    return {"whiten": version("whiten"), "onnxruntime": import_onnxruntime().__version__}


READERS = 8
"""Files that are read at once: most of the time is waited for a store."""

_Part = TypeVar("_Part", "Job", "Extension")


class Job(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A job: all that decides on the output."""

    format: Literal[4] = 4
    task: Literal["embed", "fit"]
    versions: dict[str, str]  # of whiten and onnxruntime when it began
    bundle: str  # its name
    bundle_sha256: str  # of its manifest, which holds those of all its files
    options: dict[str, str]
    choice: ColumnChoice
    per_shard: int  # records of a shard, at most
    schema: bytes  # columns that are carried, as pyarrow serialises them
    files: tuple[InputFile, ...]  # a file that was rewritten is there once more
    shards: tuple[tuple[Piece, ...], ...]
    extensions: int = 0  # times that it grew

    @cached_property
    def key(self) -> str:
        """Return the SHA-256 of all that decides on the output; where the files are, and their times, do not."""
        return self._key(self.files, self.shards)

    def shard_key(self, number: int) -> str:
        """Return the SHA-256 of all that decides on a shard: it stays as the job grows."""
        shard = self.shards[number]
        return self._key([self.files[piece.file] for piece in shard], [shard])

    def _key(self, files: Iterable[InputFile], shards: Sequence[tuple[Piece, ...]]) -> str:
        described = [file.anywhere() for file in files]
        parts = (self.format, self.task, self.bundle_sha256, self.options, self.choice, self.schema, described, shards)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()

    @cached_property
    def carried(self) -> Any:
        """Return pyarrow's schema of the columns that are carried."""
        pyarrow, _ = import_parquet()
        return pyarrow.ipc.read_schema(pyarrow.py_buffer(self.schema))

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Return for each shard the number of records before it, and last the number of all."""
        return tuple(accumulate(map(self.records, range(len(self.shards))), initial=0))

    @cached_property
    def by_name(self) -> dict[str, InputFile]:
        """Return the files by name, each as it was last."""
        return {file.name: file for file in self.files}

    def records(self, number: int) -> int:
        """Return the number of records of a shard."""
        return sum(piece.records for piece in self.shards[number])

    def extended(self, extension: "Extension") -> "Job":
        """Return the job with the files and shards of an extension."""
        files, shards = (*self.files, *extension.files), (*self.shards, *extension.shards)
        return msgspec.structs.replace(self, files=files, shards=shards, extensions=self.extensions + 1)


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """Files that a job took later, and their shards. Pieces count all files, those of the job first."""

    files: tuple[InputFile, ...]
    shards: tuple[tuple[Piece, ...], ...]


def extension_name(number: int) -> str:
    """Return the name of the file of an extension, from 1."""
    return f"_plan-{number:04d}.json"


def read_job(folder: Folder) -> Job | None:
    """Return the job that the plan of a folder holds, with all that it grew by; None if there is none."""
    job = _read_part(folder, PLAN_FILE, Job)
    for number in count(1):
        if job is None or (extension := _read_part(folder, extension_name(number), Extension)) is None:
            break
        job = job.extended(extension)
    return job


def _read_part(folder: Folder, name: str, kind: type[_Part]) -> _Part | None:
    """Return what a file of a plan holds; None if there is none."""
    content = folder.read(name)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{folder.place(name)}: is no plan ({error}); name another --out") from None
