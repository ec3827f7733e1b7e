"""Mark jobs that are done: `_manifest.json` lists the shards with hashes, and `_SUCCESS` says that all are there."""

import hashlib
from collections.abc import Collection, Mapping

import msgspec

from whiten_runtime.ort.process import map_in_threads
from whiten_scale.places import Folder, opened
from whiten_scale.plan import READERS, Job, read_job
from whiten_scale.shard import ShardRecord, shard_name

MARK_FILE, MANIFEST_FILE = "_SUCCESS", "_manifest.json"

_PART = 1 << 20
"""Bytes of a file that are read at once."""


class ShardFile(msgspec.Struct, frozen=True, kw_only=True):
    """File of a shard, as it was when the job was done."""

    file: str
    rows: int
    bytes: int
    sha256: str
    key: str  # of the shard


class OutputManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Files of an output."""

    format: int = 1
    rows: int
    shards: tuple[ShardFile, ...]


def take_mark_away(out: Folder, missing: Collection[str] = ()) -> None:
    """Delete the mark of a job that goes on, and forget the hashes of shards that are not there."""
    if out.has(MARK_FILE):
        out.delete(MARK_FILE)
    known = _read_manifest(out)
    if not known.keys().isdisjoint(missing):
        _write_manifest(out, {name: file for name, file in known.items() if name not in missing})


def mark_done(job: Job, out: Folder, records: Mapping[int, ShardRecord], made: Collection[int]) -> None:
    """Write the manifest and the mark of a job whose shards are all there, unless it has grown meanwhile.

    Files that an earlier manifest lists are not read again, but for those of the shards that were made now.
    """
    if not _is_whole(job, out):
        return
    known, sizes = _read_manifest(out), out.sizes()

    def describe(number: int) -> ShardFile:
        name, key = shard_name(number), records[number].key
        before = known.get(name)
        if before is not None and number not in made and (before.key, before.bytes) == (key, sizes[name]):
            return before
        digest = hashlib.sha256()
        with opened(out.place(name)) as file:
            while part := file.read(_PART):
                digest.update(part)
        return ShardFile(file=name, rows=records[number].rows, bytes=sizes[name], sha256=digest.hexdigest(), key=key)

    files = map_in_threads(describe, range(len(job.shards)), READERS, "whiten-manifest")
    content = _write_manifest(out, {file.file: file for file in files})
    out.write(MARK_FILE, f"{hashlib.sha256(content).hexdigest()}  {MANIFEST_FILE}\n".encode())
    if not _is_whole(job, out):
        out.delete(MARK_FILE)


def _is_whole(job: Job, out: Folder) -> bool:
    """Return whether a job is all that its plan holds now."""
    now = read_job(out)
    return now is not None and now.key == job.key


def _read_manifest(out: Folder) -> dict[str, ShardFile]:
    """Return the files of a manifest by name; none if it is not there, or is another program's."""
    try:
        manifest = msgspec.json.decode(out.read(MANIFEST_FILE) or b"{}", type=OutputManifest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return {file.file: file for file in manifest.shards}


def _write_manifest(out: Folder, files: Mapping[str, ShardFile]) -> bytes:
    shards = tuple(files.values())
    content = msgspec.json.encode(OutputManifest(rows=sum(file.rows for file in shards), shards=shards)) + b"\n"
    out.write(MANIFEST_FILE, content)
    return content
