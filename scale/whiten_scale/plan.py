"""Plan jobs: which records of which files become which output file. The same input gives the same plan everywhere."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property, partial
from itertools import accumulate, filterfalse, pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.errors import BundleError, DataError, UsageError
from whiten_runtime.files.records import Kind, content_of, kind_of, records_of
from whiten_runtime.files.texts import import_parquet
from whiten_scale import inputs, lines
from whiten_scale.inputs import Chunk, ColumnChoice, Described, InputFile, Piece
from whiten_scale.places import Entry, Folder, find, look_up, opened

PLAN_FILE = "_plan.json"

PER_SHARD = 100_000
"""Texts of a shard, at most: some minutes of one core with a small model, 150 MB of 384 float32 numbers."""

READERS = 8
"""Files that are read at once: most of the time is waited for a store."""

Cut = tuple[InputFile, Described, list[Piece]]


class Job(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Describes a job: all that decides on the output."""

    format: Literal[2] = 2
    task: Literal["embed", "fit"]
    bundle: str  # its name
    bundle_sha256: str  # of its manifest, which holds those of all its files
    options: dict[str, str]
    choice: ColumnChoice
    per_shard: int  # records of a shard, at most
    schema: bytes  # columns that are carried, as pyarrow serialises them
    files: tuple[InputFile, ...]
    shards: tuple[tuple[Piece, ...], ...]

    @cached_property
    def key(self) -> str:
        """Return the SHA-256 of all that decides on the output; where the files are, and their times, do not."""
        files = tuple(msgspec.structs.replace(file, url="", stamp="") for file in self.files)
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, bundle="", files=files))).hexdigest()

    @cached_property
    def carried(self) -> Any:
        """Return pyarrow's schema of the columns that are carried."""
        pyarrow, _ = import_parquet()
        return pyarrow.ipc.read_schema(pyarrow.py_buffer(self.schema))

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Return for each shard the number of records before it, and last the number of all."""
        return tuple(accumulate(map(self.records, range(len(self.shards))), initial=0))

    def records(self, number: int) -> int:
        """Return the number of records of a shard."""
        return sum(piece.records for piece in self.shards[number])

    def chunks(self, number: int) -> Iterator[Chunk]:
        """Yield the records of a shard; a file that was changed since the plan was made is refused."""
        for piece in self.shards[number]:
            file = self.files[piece.file]
            _check_unchanged(file)
            read = inputs.parquet_chunks if file.kind == "parquet" else lines.chunks
            yield from read(file, piece, inputs.chunk_schema(self.carried))
            _check_unchanged(file)


def _check_unchanged(file: InputFile) -> None:
    now = look_up(file.url)
    if (now.size, now.stamp) != (file.size, file.stamp):
        raise DataError(f"{file.url}: was changed since the plan was made; put it back, or name another --out")


def bundle_hash(path: Path) -> str:
    """Return the SHA-256 of a bundle's manifest."""
    try:
        return hashlib.sha256((path / MANIFEST_FILE).read_bytes()).hexdigest()
    except OSError as error:
        raise BundleError(f"{path}: not a bundle ({error.strerror})") from None


def plan_job(
    folder: Folder,
    task: Literal["embed", "fit"],
    bundle: Path,
    options: dict[str, str],
    given: Sequence[str],
    choice: ColumnChoice,
    per_shard: int | None,
    say: Callable[[str], object],
    warn: Callable[[str], object],
) -> Job:
    """Return the job that `_plan.json` of a folder holds, or make it and write it there, once.

    Files whose size and time are those of the plan are not read again. `per_shard` is None for that of the plan, or
    the default.
    """
    found = read_job(folder)
    if found is None:
        _check_empty(folder)
    entries, others = listed(given, folder)
    if others:
        warn(f"{len(others)} files of other kinds are left out: {', '.join(others[:3])}{', ...' if others[3:] else ''}")
    common = {"task": task, "bundle": bundle.name, "bundle_sha256": bundle_hash(bundle), "options": options}
    if found is None:
        say(f"planning {len(entries):,} file{'' if len(entries) == 1 else 's'}")
    records = per_shard or (PER_SHARD if found is None else found.per_shard)
    if found is not None and _looks_same(found, entries, choice, records):
        job = msgspec.structs.replace(found, **common)
    else:
        job = make_job(common, entries, choice, records)
    found = found or read_job(folder)  # another process may have planned meanwhile
    if found is None:
        folder.write(PLAN_FILE, msgspec.json.encode(job) + b"\n")
    elif found.key != job.key:
        place = folder.place(PLAN_FILE)
        raise UsageError(f"{place}: is of another job ({_difference(found, job)}); name another --out")
    return job


def read_job(folder: Folder) -> Job | None:
    """Return the job that `_plan.json` of a folder holds; None if there is none."""
    content = folder.read(PLAN_FILE)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=Job)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{folder.place(PLAN_FILE)}: is no plan ({error}); name another --out") from None


def _looks_same(job: Job, entries: list[Entry], choice: ColumnChoice, per_shard: int) -> bool:
    """Return whether names, sizes and times of the files are those of the plan."""
    before = [Entry(file.url, file.name, file.size, file.stamp) for file in job.files]
    return before == entries and (job.choice, job.per_shard) == (choice, per_shard)


def _check_empty(folder: Folder) -> None:
    if files := sorted(name for name in folder.names() - {PLAN_FILE} if not name.startswith(".")):
        raise UsageError(f"{folder.place(files[0])}: is there, but no {PLAN_FILE}; name an empty or new --out")


def _difference(before: Job, now: Job) -> str:
    """Return in what two jobs differ, of many differences the first."""
    had, has = (
        {
            "task": job.task,
            "bundle": job.bundle_sha256[:16],
            "texts of a shard": job.per_shard,
            **msgspec.structs.asdict(job.choice),
            **job.options,
            **{file.name: file.sha256[:16] for file in job.files},
        }
        for job in (before, now)
    )
    names = [name for name in {**had, **has} if had.get(name) != has.get(name)]
    return "; ".join(f"{name}: {had.get(name)} -> {has.get(name)}" for name in names[:5]) or "other columns"


def listed(given: Sequence[str], out: Folder) -> tuple[list[Entry], list[str]]:
    """Return the files of texts that directories, files and patterns name, and the names of others in directories.

    Files of the output are left out: it may lie in a directory of the input.
    """
    found, others = [], []
    for one in given:
        for entry in filterfalse(out.holds, find(one)):
            if kind_of(entry.name) not in (None, ("parquet", True)):
                found.append(entry)
            elif entry.name == one.rstrip("/").rpartition("/")[2]:
                raise UsageError(f"'{one}': unknown kind of file; wanted {', '.join(get_args(Kind))}, or one with .gz")
            else:
                others.append(entry.name)
    found.sort(key=lambda entry: entry.name)
    if double := next((a.name for a, b in pairwise(found) if a.name == b.name), None):
        raise UsageError(f"two files of --input are called '{double}'; name the directory above both")
    if not found:
        raise UsageError(f"'{given[0]}' holds no file of texts; wanted {', '.join(get_args(Kind))}")
    return found, others


def make_job(common: dict[str, Any], entries: Iterable[Entry], choice: ColumnChoice, per_shard: int) -> Job:
    """Read all files once, of Parquet files the footers, and return their job; `common` has its other fields."""
    with ThreadPoolExecutor(READERS, "whiten-plan") as executor:
        cuts = list(executor.map(partial(_cut, choice=choice, per_shard=per_shard), entries))
    files = tuple(file for file, _, _ in cuts)
    pieces = [msgspec.structs.replace(piece, file=index) for index, (_, _, cut) in enumerate(cuts) for piece in cut]
    if not pieces:
        raise DataError(f"{files[0].url}: holds no text, nor does any other file of --input")
    schema = bytes(_common_schema(cuts, choice).serialize())
    shards = tuple(_gathered(pieces, per_shard))
    return Job(**common, choice=choice, per_shard=per_shard, schema=schema, files=files, shards=shards)


def _cut(entry: Entry, choice: ColumnChoice, per_shard: int) -> Cut:
    """Read a file, and return what is known of it, and its pieces; a compressed file is one piece, however long."""
    kind, compressed = kind_of(entry.name) or ("txt", False)
    if kind == "parquet":
        with opened(entry.url) as stream:
            file = inputs.open_parquet(stream, entry.url)
            described = inputs.describe_parquet(file, entry.url, choice)
            pieces, digest = list(inputs.cut_parquet(file, per_shard)), inputs.footer_hash(stream)
    else:
        with opened(entry.url) as raw, content_of(raw, entry.url, compressed) as stream:
            described = lines.describe(stream, entry.url, kind, choice)
            stream.seek(described.start)
            records = records_of(stream, entry.url, kind, described.row)
            pieces, digest = lines.cut(records, described.start, None if compressed else per_shard)
    columns, column = described.columns, described.column
    found = InputFile(**asdict(entry), kind=kind, compressed=compressed, columns=columns, column=column, sha256=digest)
    return found, described, pieces


def _gathered(pieces: Iterable[Piece], per_shard: int) -> Iterator[tuple[Piece, ...]]:
    """Yield shards of consecutive pieces, as long as they have no more than `per_shard` records together."""
    shard, count = list[Piece](), 0
    for piece in pieces:
        if shard and count + piece.records > per_shard:
            yield tuple(shard)
            shard, count = [], 0
        shard.append(piece)
        count += piece.records
    if shard:
        yield tuple(shard)


def _common_schema(cuts: Sequence[Cut], choice: ColumnChoice) -> Any:
    """Return the schema of the columns that are carried, which all files share; ids are not null."""
    pyarrow, _ = import_parquet()
    first, described, _ = next(one for one in cuts if one[2])
    for file, other, pieces in cuts:
        for one, another in zip(described.carried, other.carried, strict=True):
            if pieces and one.type != another.type:
                raise UsageError(
                    f"'{one.name}' is {one.type} in '{first.name}' and {another.type} in '{file.name}'; give both one "
                    "type, or embed them apart"
                )
    fields = [field.with_nullable(field.name != choice.id).remove_metadata() for field in described.carried]
    return pyarrow.schema(fields)
