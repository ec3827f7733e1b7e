"""Plan jobs: which records of which files become which output file. The same input gives the same plan everywhere."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import accumulate, filterfalse, pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec

from whiten_runtime.bundle.manifest import bundle_hash
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.rows import choose_column, endings, import_parquet, kind_of
from whiten_runtime.inference.batching import WINDOW
from whiten_runtime.ort.process import map_in_threads
from whiten_scale.columns import common_type
from whiten_scale.places import Entry, Folder, find
from whiten_scale.readers import ColumnChoice, CutFile, InputFile, Piece, cut_file

PLAN_FILE = "_plan.json"

PER_SHARD = 100_000
"""Texts of a shard, at most: some minutes of one core with a small model, 150 MB of 384 float32 numbers."""

SHARDS = 64
"""Shards of a small job of embedding, about: so many processes have work, and so often progress is told."""

READERS = 8
"""Files that are read at once: most of the time is waited for a store."""


class Job(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A job: all that decides on the output."""

    format: Literal[3] = 3
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


def plan_job(
    folder: Folder,
    task: Literal["embed", "fit"],
    bundle: Path,
    options: dict[str, str],
    inputs: Sequence[str],
    choice: ColumnChoice,
    say: Callable[[str], object],
    warn: Callable[[str], object],
) -> Job:
    """Return the job that `_plan.json` of a folder holds, or make it and write it there, once.

    Files whose size and time are those of the plan are not read again.
    """
    written = read_job(folder)
    if written is None:
        _check_empty(folder)
    entries, others = list_inputs(inputs, folder)
    if others:
        warn(f"{len(others)} files of other kinds are left out: {', '.join(others[:3])}{', ...' if others[3:] else ''}")
    common = {"task": task, "bundle": bundle.name, "bundle_sha256": bundle_hash(bundle), "options": options}
    if written is None:
        say(f"planning {len(entries):,} file{'' if len(entries) == 1 else 's'}")
    if written is not None and _looks_same(written, entries, choice):
        job = msgspec.structs.replace(written, **common)
    elif written is not None:
        job = make_job(common, entries, choice, written.per_shard)
    else:
        job = make_job(common, entries, choice, PER_SHARD)
        if task == "embed" and _can_be_cut(job, fewer := texts_per_shard(job.starts[-1])):
            job = make_job(common, entries, choice, fewer)
    if written is None:
        folder.create(PLAN_FILE, msgspec.json.encode(job) + b"\n")
        written = read_job(folder)  # another process may have planned meanwhile
    if written is not None and written.key != job.key:
        place = folder.place(PLAN_FILE)
        raise UsageError(f"{place}: is of another job ({_difference(written, job)}); name another --out")
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


def _looks_same(job: Job, entries: list[Entry], choice: ColumnChoice) -> bool:
    """Return whether names, sizes and times of the files are those of the plan; files without a time may differ."""
    before = [Entry(file.url, file.name, file.size, file.stamp) for file in job.files]
    return before == entries and job.choice == choice and all(entry.stamp for entry in entries)


def texts_per_shard(records: int) -> int:
    """Return how many texts a shard has at most, of a job of embedding with so many: whole windows of a processor."""
    return min(PER_SHARD, WINDOW * max(1, -(-records // (SHARDS * WINDOW))))


def _can_be_cut(job: Job, size: int) -> bool:
    """Return whether a shard has more records than `size`, and is not one compressed file, which is never cut."""
    return any(
        job.records(number) > size and (len(shard) > 1 or job.files[shard[0].file].compression is None)
        for number, shard in enumerate(job.shards)
    )


def _check_empty(folder: Folder) -> None:
    if files := sorted(name for name in folder.names() - {PLAN_FILE} if not name.startswith(".")):
        raise UsageError(f"{folder.place(files[0])}: is there, but no {PLAN_FILE}; name an empty or new --out")


def _difference(before: Job, now: Job) -> str:
    """Return in what two jobs differ, of many differences the first."""
    had, has = (
        {
            "task": job.task,
            "bundle": job.bundle_sha256[:16],
            **msgspec.structs.asdict(job.choice),
            **job.options,
            **{file.name: file.sha256[:16] for file in job.files},
        }
        for job in (before, now)
    )
    names = [name for name in {**had, **has} if had.get(name) != has.get(name)]
    return "; ".join(f"{name}: {had.get(name)} -> {has.get(name)}" for name in names[:5]) or "other columns"


def list_inputs(inputs: Sequence[str], out: Folder) -> tuple[list[Entry], list[str]]:
    """Return the files of texts that directories, files and patterns name, and the names of others in directories.

    Files of the output are left out: it may lie in a directory of the input.
    """
    entries, others = list[Entry](), list[str]()
    for path in inputs:
        for entry in filterfalse(out.holds, find(path)):
            kind, compression = kind_of(entry.name) or (None, None)
            if kind == "parquet" and compression:
                raise UsageError(f"'{entry.url}': is compressed as a whole; Parquet compresses inside: unpack it")
            if kind:
                entries.append(entry)
            elif entry.name == path.rstrip("/").rpartition("/")[2]:
                raise UsageError(f"'{path}': unknown kind of file; wanted {endings()}")
            else:
                others.append(entry.name)
    entries.sort(key=lambda entry: entry.name)
    if double := next((a.name for a, b in pairwise(entries) if a.name == b.name), None):
        raise UsageError(f"two files of the input are called '{double}'; name the directory above both")
    if not entries:
        held = f", only {', '.join(others[:3])}{', ...' if others[3:] else ''}" if others else ""
        raise UsageError(f"'{inputs[0]}' holds no file of texts{held}; wanted {endings()}")
    return entries, others


def make_job(common: dict[str, Any], entries: Iterable[Entry], choice: ColumnChoice, per_shard: int) -> Job:
    """Read all files once, and return their job; `common` has its other fields."""
    cut = partial(cut_file, choice=choice, per_shard=per_shard)
    cuts = list(map_in_threads(cut, list(entries), READERS, "whiten-plan"))
    files = tuple(cut.file for cut in cuts)
    pieces = [msgspec.structs.replace(piece, file=index) for index, cut in enumerate(cuts) for piece in cut.pieces]
    if not pieces:
        raise DataError(f"{files[0].url}: holds no text, nor does any other file of the input")
    schema = bytes(_common_schema(cuts, choice).serialize())
    shards = tuple(_shards(pieces, per_shard))
    return Job(**common, choice=choice, per_shard=per_shard, schema=schema, files=files, shards=shards)


def _shards(pieces: Iterable[Piece], per_shard: int) -> Iterator[tuple[Piece, ...]]:
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


def _common_schema(cuts: Sequence[CutFile], choice: ColumnChoice) -> Any:
    """Return the schema of the columns that are carried, of types that hold the values of all files; ids are not null.

    A column that a .jsonl file lacks is null there; one that every file lacks is refused.
    """
    pyarrow, _ = import_parquet()
    cuts, fields = [cut for cut in cuts if cut.pieces], []
    for place, name in enumerate(choice.carried):
        if all(name in cut.absent for cut in cuts):
            choose_column(name, cuts[0].absent[name], cuts[0].file.url)
        types = {cut.carried.field(place).type: cut.file.name for cut in reversed(cuts)}  # the first file of each
        kind = common_type(cut.carried.field(place).type for cut in cuts)
        if kind is None:
            held = " and ".join(f"{kind} in '{file}'" for kind, file in reversed(types.items()))
            raise UsageError(f"'{name}' is {held}; give all files one type, or embed them apart")
        fields.append(pyarrow.field(name, kind, nullable=name != choice.id))
    return pyarrow.schema(fields)
