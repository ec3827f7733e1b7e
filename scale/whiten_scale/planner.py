"""Plan jobs, and let plans grow by new files. The same input gives the same plan everywhere."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import filterfalse, pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from whiten_runtime.bundle.manifest import bundle_hash
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.rows import choose_column, endings, import_parquet, kind_of
from whiten_runtime.inference.batching import WINDOW
from whiten_runtime.ort.process import map_in_threads
from whiten_scale.columns import common_type, holds
from whiten_scale.completion import take_mark_away
from whiten_scale.copies import copy_entry, copy_new_rows, cut_copy, is_copy
from whiten_scale.places import Entry, Folder, find
from whiten_scale.plan import PLAN_FILE, READERS, Extension, Job, extension_name, read_job, versions
from whiten_scale.readers import ColumnChoice, CutFile, Piece, cut_file
from whiten_scale.shard import shard_name

PER_SHARD = 100_000
"""Texts of a shard, at most: some minutes of one core with a small model, 150 MB of 384 float32 numbers."""

SHARDS = 64
"""Shards of a small job of embedding, about: so many processes have work, and so often progress is told."""

Say = Callable[[str], object]


def plan_job(
    folder: Folder,
    task: Literal["embed", "fit"],
    bundle: Path,
    options: dict[str, str],
    inputs: Sequence[str],
    choice: ColumnChoice,
    say: Say,
    warn: Say,
    force_version: bool = False,
    record_errors: bool = False,
) -> Job:
    """Return the job that the plan of a folder holds, grown by new files; or make it and write it there, once.

    Files whose size and time are those of the plan are not read again.
    """
    written = read_job(folder)
    if written is None:
        _check_empty(folder)
    entries, others = list_inputs(inputs, folder)
    if others:
        warn(f"{len(others)} files of other kinds are left out: {', '.join(others[:3])}{', ...' if others[3:] else ''}")
    bundle_sha256, here = bundle_hash(bundle), versions()
    common: dict[str, Any] = {"bundle_sha256": bundle_sha256, "options": options, "versions": here}
    if written is None:
        say(f"planning {_files(len(entries))}")
        common |= {"task": task, "bundle": bundle.name}
        job = make_job(common, entries, choice, PER_SHARD)
        if task == "embed" and _can_be_cut(job, fewer := texts_per_shard(job.starts[-1])):
            job = make_job(common, entries, choice, fewer)
        folder.create(PLAN_FILE, msgspec.json.encode(job) + b"\n")
        written = read_job(folder)  # another process may have planned meanwhile
        if written is None or (written.key, written.versions) == (job.key, job.versions):
            return job
    before = _settings(written.task, written.bundle_sha256, written.choice, written.options)
    now = _settings(task, bundle_sha256, choice, options)
    if differences := list(_differences(before, now)):
        _refuse(folder, "; ".join(differences[:5]))
    if written.versions != here and not force_version:
        raise UsageError(
            f"{folder.place(PLAN_FILE)}: was begun with {_shown(written.versions)}, and here is "
            f"{_shown(here)}, which may give other last bits; install what it was begun with, or go on with "
            "--force-version"
        )
    return _grow(msgspec.structs.replace(written, bundle=bundle.name), entries, folder, say, warn, record_errors)


def _shown(numbers: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in numbers.items())


def _files(number: int) -> str:
    return f"{number:,} file{'' if number == 1 else 's'}"


def _settings(task: str, bundle: str, choice: ColumnChoice, options: Mapping[str, str]) -> dict[str, Any]:
    """Return what belongs to a job besides its files, by the names of the options."""
    return {"task": task, "bundle": bundle, **msgspec.structs.asdict(choice), **options}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield in what two jobs differ."""
    for name in {**before, **now}:
        if (had := before.get(name)) != (has := now.get(name)):
            digits = 16 if name == "bundle" else None  # of a hash
            yield f"{name}: {str(had)[:digits]} -> {str(has)[:digits]}"


def _refuse(folder: Folder, difference: str) -> NoReturn:
    raise UsageError(f"{folder.place(PLAN_FILE)}: is of another job ({difference}); name another --out")


def _grow(job: Job, entries: Sequence[Entry], folder: Folder, say: Say, warn: Say, record_errors: bool) -> Job:
    """Return a job with its files as they are now; new ones are planned, and written once.

    Of a file that was rewritten, in a job with ids, the rows with new ids are copied into the folder, and planned.
    """
    copies = [copy_entry(folder, name) for name in job.by_name if is_copy(name)]
    cuts = list(map_in_threads(partial(_cut, job), [*entries, *copies], READERS, "whiten-plan"))
    now = {cut.file.name: cut.file for cut in cuts}
    if gone := [name for name in job.by_name if name not in now]:
        _refuse(folder, f"{gone[0]} is gone")
    added = [cut for cut in cuts if cut.file.name not in job.by_name]
    changed = [cut for cut in cuts if cut.file.anywhere() != job.by_name.get(cut.file.name, cut.file).anywhere()]
    if changed and (job.choice.id is None or any(is_copy(cut.file.name) for cut in changed)):
        _refuse(folder, f"{changed[0].file.name} was changed")
    if added and job.task == "fit":
        _refuse(folder, f"{added[0].file.name} is new")
    moved = (now[file.name] if file.anywhere() == now[file.name].anywhere() else file for file in job.files)
    job = msgspec.structs.replace(job, files=tuple(moved))
    if not added and not changed:
        return job
    _check_types(job, [*added, *changed], folder)
    if changed and (left := _left(job, folder)):
        if names := sorted(left & {cut.file.name for cut in changed}):
            raise UsageError(
                f"{folder.place(PLAN_FILE)}: {names[0]} was changed before the job was done; put it back, and run the "
                "job to its end first"
            )
        warn(f"{changed[0].file.name} has changed: run the same command once more, when this job is done")
        return job
    files = [cut.file for cut in (*changed, *added)]
    if changed:
        copied = copy_new_rows(job, [*changed, *added], folder, record_errors)
        added = [] if copied is None else [cut_copy(job, copy_entry(folder, copied))]
        files += [cut.file for cut in added]
        warn(
            f"{_files(len(changed))} changed, such as {changed[0].file.name}: rows with new ids are added; the others "
            "keep their vectors, whatever their texts are now"
        )
    # what is read comes last
    pieces = _pieces(added, len(job.files) + len(files) - len(added))
    say(f"records that the job grows by: {sum(piece.records for piece in pieces):,}")
    return _extend(job, Extension(files=tuple(files), shards=tuple(_shards(pieces, job.per_shard))), folder)


def _extend(job: Job, extension: Extension, folder: Folder) -> Job:
    """Write an extension of a job's plan, once, and return the job with it."""
    take_mark_away(folder)
    folder.create(extension_name(job.extensions + 1), msgspec.json.encode(extension) + b"\n")
    take_mark_away(folder)  # which another process may have written meanwhile
    grown, written = job.extended(extension), read_job(folder)
    if written is None or written.key != grown.key:
        raise UsageError(f"{folder.place(PLAN_FILE)}: another process let the job grow; run the same command again")
    return grown


def _left(job: Job, folder: Folder) -> set[str]:
    """Return the names of the files of which shards are not there yet."""
    names = folder.names()
    left = [shard for number, shard in enumerate(job.shards) if shard_name(number) not in names]
    return {job.files[piece.file].name for shard in left for piece in shard}


def _cut(job: Job, entry: Entry) -> CutFile:
    """Return how a file is cut; one that has the size and time of the plan is not read again."""
    before = job.by_name.get(entry.name)
    if before is not None and entry.stamp and entry == before.entry():
        return CutFile(before, job.carried, [], {})
    return cut_copy(job, entry) if is_copy(entry.name) else cut_file(entry, job.choice, job.per_shard)


def _check_types(job: Job, cuts: Iterable[CutFile], folder: Folder) -> None:
    """Check that the columns of more files have values that those of the plan can hold."""
    for cut in cuts:
        for place, column in enumerate(job.carried):
            if column.name in cut.absent and len(cut.pieces):
                choose_column(column.name, cut.absent[column.name], cut.file.url)
            kind = cut.carried.field(place).type
            if not holds(column.type, kind):
                _refuse(folder, f"'{column.name}' is {column.type} there, and {kind} in '{cut.file.name}'")


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
    pieces = _pieces(cuts, 0)
    if not pieces:
        raise DataError(f"{files[0].url}: holds no text, nor does any other file of the input")
    schema = bytes(_common_schema(cuts, choice).serialize())
    shards = tuple(_shards(pieces, per_shard))
    return Job(**common, choice=choice, per_shard=per_shard, schema=schema, files=files, shards=shards)


def _pieces(cuts: Iterable[CutFile], first: int) -> list[Piece]:
    """Return the pieces of files that are counted from `first`."""
    return [msgspec.structs.replace(piece, file=index) for index, cut in enumerate(cuts, first) for piece in cut.pieces]


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
