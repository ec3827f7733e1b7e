"""Implement `whiten embed-many`: embed many files of texts in shards, with many processes and machines."""

from typing import get_args

import click

from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.commands import console
from whiten_runtime.commands.console import (
    WholeNumber,
    bundle_argument,
    command,
    counted,
    given_text,
    heading,
    option,
    say,
    warn,
)
from whiten_runtime.errors import WhitenError
from whiten_runtime.hub import locate_bundle
from whiten_scale.commands import check_able, do_items, sharing_options
from whiten_scale.completion import mark_done, take_mark_away
from whiten_scale.places import Folder
from whiten_scale.plan import PLAN_FILE
from whiten_scale.planner import plan_job
from whiten_scale.readers import ColumnChoice
from whiten_scale.shard import ERRORS_FILE, StoredType, VectorChoice, Vectors, finished, shard_name, write_errors
from whiten_scale.workers import Work


@command(
    "embed-many",
    section="Use",
    examples=(
        "whiten embed-many bundles/minilm --input texts/ --out vectors/",
        "whiten embed-many bundles/minilm --input 's3://a/*.csv' --out s3://a/v",
    ),
)
@bundle_argument
@heading("Input")
@option(
    "--input",
    "inputs",
    multiple=True,
    required=True,
    metavar="DIR|FILE",
    help="Texts: folders, files, patterns. Patterns have a *, as in texts/*.csv. Files of .txt, .jsonl, .csv, .tsv "
    "(each also .gz, .zst, .bz2 or .xz) and .parquet, on disks, s3:// and whatever fsspec knows. Repeatable.",
)
@option("--column", metavar="COLUMN", help="Column or key of the text in --input.")
@option("--id", "id_column", metavar="COLUMN", help="Column of the ids. [default: file and row]")
@option("--keep", multiple=True, metavar="COLUMN", help="Column to carry into the output. Repeatable.")
@option("--prompt-name", metavar="NAME", callback=given_text, help="Prompt of the bundle, such as query.")
@option("--prompt", metavar="TEXT", callback=given_text, help='Prompt before each text; "" for none.')
@option(
    "--on-error",
    type=click.Choice(["stop", "record"]),
    metavar="stop|record",
    default="stop",
    show_default=True,
    help=f"At a row without a text. Stop, or leave it out and list it in {ERRORS_FILE}.",
)
@heading("Vectors")
@option(
    "--vector-type",
    "stored",
    type=click.Choice(get_args(StoredType)),
    metavar="TYPE",
    default="float32",
    show_default=True,
    help=f"{', '.join(get_args(StoredType))}. What is stored of a text: its vector, or a code of a few bytes.",
)
@option(
    "--bytes",
    "size",
    type=WholeNumber(min=1),
    metavar="B",
    help="Bytes of a code. [default: a third of the dimensions]",
)
@option("--normalize", is_flag=True, help="Divide each vector by its L2 norm.")
@option("--truncate-dim", type=WholeNumber(min=1), metavar="K", help="Keep the first K coordinates only.")
@heading("Output")
@option("-o", "--out", required=True, metavar="DIR", help="Directory or URL of the output.")
@option("--plan-only", is_flag=True, help="Write the plan, and stop.")
@sharing_options("Processes. [default: one for each usable CPU]")
def embed_many(
    bundle: str,
    inputs: tuple[str, ...],
    column: str | None,
    workers: int | None,
    share: slice,
    ray: str | None,
    force_version: bool,
    out: str,
    id_column: str | None,
    keep: tuple[str, ...],
    stored: StoredType,
    size: int | None,
    prompt_name: str | None,
    prompt: str | None,
    normalize: bool,
    truncate_dim: int | None,
    on_error: str,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Embed many files of texts, with many processes and machines.

    Shards of the input become Parquet files in --out, each whole or not at all. The plan is written to _plan.json
    there. The same command resumes, whatever ended it; several machines share the work with --share K/N. Files do not
    depend on the number of workers and machines. _SUCCESS appears there when all are there. Files that are new in the
    input are added. Repeat the options of the input and the vectors in every run: they
    belong to the plan. --on-error and the options of the execution may change.
    """
    check_able(workers, ray)
    choice = VectorChoice(
        vector_type=stored,
        normalize=normalize,
        truncate_dim=truncate_dim,
        prompt_name=prompt_name,
        prompt=prompt,
        bytes=size,
    )
    path, folder = locate_bundle(bundle).absolute(), Folder(out)
    columns = ColumnChoice(column, id_column, keep)
    columns.check()
    if not folder.has(PLAN_FILE):
        Vectors(path, choice).encoder.close()  # options that the bundle refuses leave no plan
    job = plan_job(
        folder, "embed", path, choice.shown(), inputs, columns, say, warn, force_version, on_error == "record"
    )
    everything = range(len(job.shards))
    if missing := set(map(shard_name, everything)) - folder.names():
        take_mark_away(folder, missing)
    if plan_only:
        records = job.starts[-1]
        say(f"planned {counted(records, 'record')} in {counted(len(everything), 'shard')}: {folder.place(PLAN_FILE)}")
        if as_json:
            console.print_json({"out": folder.url, "planned": len(everything), "records": records, "key": job.key})
        return
    mine = everything[share]
    there = finished(job, folder, mine)
    todo = [number for number in mine if number not in there]
    work = Work(job=job, bundle=str(path), out=folder.address, vectors=choice, record_errors=on_error == "record")
    folder.delete_abandoned()
    if there:
        say(f"there already: {counted(len(there), 'shard')}; left: {len(todo):,}")
    do_items("embedded", work, todo, workers, ray)
    whole = folder.names() >= set(map(shard_name, everything))
    shards_done = finished(job, folder, everything if whole else mine)
    if gone := [shard_name(number) for number in mine if number not in shards_done]:
        raise WhitenError(f"{folder.place(gone[0])}: was removed during this run; run the same command again")
    wrong = write_errors(folder, shards_done) if whole else 0
    if whole:
        mark_done(job, folder, shards_done, todo)
    rows = sum(record.rows for record in shards_done.values())
    truncated = sum(record.truncated for record in shards_done.values())
    if wrong:
        warn(
            f"left out, as they hold no text or get no vector: {counted(wrong, 'row')}, "
            f"listed in {folder.place(ERRORS_FILE)}"
        )
    if truncated:
        limit = f"at most {read_manifest(path).max_seq_length} tokens of a text are read"
        warn(f"{truncated:,} of {rows:,} texts were cut: {limit}")
    shards = counted(len(everything), "shard")
    of = "" if len(shards_done) == len(everything) else f"{len(shards_done):,} of "
    say(f"{counted(rows, 'row')} in {of}{shards} in {folder.url}")
    if as_json:
        console.print_json(
            {
                "out": folder.url,
                "planned": len(everything),
                "shards": len(shards_done),
                "embedded": len(todo),
                "resumed": len(there),
                "rows": rows,
                "blank": sum(record.blank for record in shards_done.values()),
                "truncated": truncated,
                "wrong": sum(len(record.wrong) for record in shards_done.values()),
                "key": job.key,
            }
        )
