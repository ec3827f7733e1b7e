"""Define jobs: a plan with all that decides on the output, and the file that holds it beside the output."""

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.errors import BundleError, UsageError
from whiten_scale.inputs.pieces import ColumnChoice
from whiten_scale.places import Entry, Folder
from whiten_scale.plan import PER_SHARD, Plan, listed, make_plan

PLAN_FILE = "_plan.json"

FORMAT = 1

Task = Literal["embed", "fit"]


class Job(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Describes a job.

    Attributes:
        format: version of the format of `_plan.json`.
        task: what is done with each shard.
        bundle: name of the bundle.
        bundle_sha256: SHA-256 of its manifest, which holds those of all its files.
        options: options by name, as they are written.
        plan: the plan.
    """

    format: int = FORMAT
    task: Task
    bundle: str
    bundle_sha256: str
    options: dict[str, str]
    plan: Plan

    @cached_property
    def key(self) -> str:
        """Return the SHA-256 of all that decides on the output."""
        facts = [self.format, self.task, self.bundle_sha256, sorted(self.options.items()), self.plan.hash]
        return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


def bundle_hash(path: Path) -> str:
    """Return the SHA-256 of a bundle's manifest.

    Raises:
        BundleError: there is none.
    """
    try:
        return hashlib.sha256((path / MANIFEST_FILE).read_bytes()).hexdigest()
    except OSError as error:
        raise BundleError(f"{path}: not a bundle ({error.strerror})") from None


def planned(
    folder: Folder,
    task: Task,
    bundle: Path,
    options: dict[str, str],
    inputs: Sequence[str],
    choice: ColumnChoice,
    per_shard: int | None,
    say: Callable[[str], object] = lambda message: None,
    warn: Callable[[str], object] = lambda message: None,
) -> Job:
    """Return the job that `_plan.json` of a folder holds, or make it and write it there, once.

    Processes that begin at the same time have one plan: that of the first to write it.

    Files whose size and time are those of the plan are not read again.

    Args:
        folder: directory of the output.
        task: what is done with each shard.
        bundle: directory of the bundle.
        options: options by name, as they are written.
        inputs: directories, files and patterns.
        choice: columns that are read.
        per_shard: records of a shard, at most; None for those of the plan that is there, or the default.
        say: function that tells what is done.
        warn: function that tells what is left out.

    Raises:
        UsageError: there is a plan of another input, bundle or other options, or files of no plan.
        DataError: the input cannot be read.
        WhitenError: the folder cannot be written.
    """
    entries, others = listed(inputs)
    if others:
        warn(f"{len(others)} files of other kinds are left out: {', '.join(others[:3])}{', ...' if others[3:] else ''}")
    found = read_job(folder)
    facts: dict[str, Any] = {"task": task, "bundle": bundle.name, "bundle_sha256": bundle_hash(bundle)}

    def job_of(found: Job | None) -> Job:
        records = per_shard or (found.plan.per_shard if found is not None else PER_SHARD)
        same = found is not None and _is_same(found.plan, entries, choice, records)
        plan = found.plan if found is not None and same else make_plan(entries, choice, records)
        return Job(**facts, options=options, plan=plan)

    if found is None:
        _check_empty(folder)
        say(f"planning {len(entries):,} files")
    job = job_of(found)
    if found is None and not folder.create(PLAN_FILE, msgspec.json.encode(job) + b"\n"):
        found = read_job(folder)  # that of a process which began at the same time
        job = job_of(found)
    if found is not None and (difference := _difference(found, job)):
        raise UsageError(f"{folder.place(PLAN_FILE)}: is of another job ({difference}); name another --out")
    if found is not None:
        folder.tidy(PLAN_FILE)
    return job


def read_job(folder: Folder) -> Job | None:
    """Return the job that `_plan.json` of a folder holds; None if there is none.

    Raises:
        UsageError: the file cannot be read.
    """
    content = folder.read(PLAN_FILE)
    if content is None:
        return None
    place = folder.place(PLAN_FILE)
    try:
        version = msgspec.json.decode(content).get("format")
        if version != FORMAT:
            raise UsageError(f"{place}: format {version}; this version of whiten reads {FORMAT}, so name another --out")
        return msgspec.json.decode(content, type=Job)
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError) as error:
        raise UsageError(f"{place}: is no plan ({error}); name another --out") from None


def _is_same(plan: Plan, entries: Sequence[Entry], choice: ColumnChoice, per_shard: int) -> bool:
    """Return whether nothing says that the input is another than that of a plan."""
    before = [(file.name, file.size, file.url, file.stamp) for file in plan.files]
    now = [(entry.name, entry.size, entry.url, entry.stamp) for entry in entries]
    return before == now and plan.choice == choice and plan.per_shard == per_shard


def _check_empty(folder: Folder) -> None:
    names = folder.names()
    if PLAN_FILE in names:  # another process has just written it
        return
    if files := sorted(name for name in names if not name.startswith(".")):
        raise UsageError(f"{folder.place(files[0])}: is there, but no {PLAN_FILE}; name an empty or new --out")


def _difference(before: Job, now: Job) -> str | None:
    """Return in what two jobs differ, or None."""
    pairs = [("task", before.task, now.task), ("bundle", before.bundle_sha256[:16], now.bundle_sha256[:16])]
    old, new = before.plan, now.plan
    pairs += [("records of a shard", str(old.per_shard), str(new.per_shard))]
    for name in ("column", "id", "keep"):
        pairs.append((name, str(getattr(old.choice, name)), str(getattr(new.choice, name))))
    names = sorted(before.options.keys() | now.options.keys())
    pairs += [(name, before.options.get(name, "none"), now.options.get(name, "none")) for name in names]
    if found := [f"{name}: {first} -> {second}" for name, first, second in pairs if first != second]:
        return "; ".join(found)
    if old.hash == new.hash:
        return None
    had, has = _contents(old), _contents(new)
    for name in sorted(had.keys() | has.keys()):
        if had.get(name) != has.get(name):
            return f"{name} is {'new' if name not in had else 'gone' if name not in has else 'changed'}"
    return "other columns"


def _contents(plan: Plan) -> dict[str, list[str]]:
    """Return for each file what tells its content."""
    found = {file.name: [file.footer] for file in plan.files}
    for piece in (piece for shard in plan.shards for piece in shard):
        found[plan.files[piece.file].name].append(piece.sha256)
    return found
