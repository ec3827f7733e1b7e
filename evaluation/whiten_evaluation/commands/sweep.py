"""Implement `whiten sweep`: measure which layers and which whitening are best for a model."""

import os
from pathlib import Path

import click
import msgspec

from whiten_evaluation.commands.eval import data_option, read_similarity_tasks, show, tasks_option
from whiten_evaluation.sts import SUBSETS
from whiten_export.commands.shared import parse_numbers
from whiten_export.staging import Kind, check_place, staged
from whiten_runtime.commands import console
from whiten_runtime.commands.console import ConsoleReporter, command, heading, option
from whiten_runtime.errors import needing
from whiten_runtime.files.judged import has_collections, read_collections
from whiten_runtime.ort.session import SessionOptions, providers_for

REPORT = Kind("sweep", "sweep.json")


@command(
    section="Measure",
    examples=(
        "whiten sweep bert-base --data sts/",
        "whiten sweep bert-base --data sts/ --layers 1,12",
    ),
)
@click.argument("model")
@heading("Data")
@data_option
@tasks_option(SUBSETS)
@heading("Model")
@option("--layers", metavar="L,L", help="Layers to combine. [default: all]")
@option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the checkpoint.")
@heading("Output")
@option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of the scores. [default: sweeps/NAME]",
)
@option("--force", is_flag=True, help="Replace scores that are already there.")
def sweep(
    model: str,
    data: Path,
    tasks: str | None,
    layers: str | None,
    trust_remote_code: bool,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Score combinations of a model's layers, whitened and not.

    Combinations are scored on the similarity tasks in --data, with the model's own pooling: not whitened, whitened on
    each task's own sentences as in WhiteningBERT, and whitened on a corpus as by an export. Single layers and pairs are
    also scored on the search collections there, in the layout of whiten eval retrieval. A table is printed; the folder
    has all scores and a picture. Texts go through the model once: every layer's vectors stay in ~/.cache/whiten
    (XDG_CACHE_HOME) for the next sweep. MODEL is as for whiten-export.
    """
    chosen = None if layers is None else parse_numbers("layers", layers)
    target = out or Path("sweeps") / Path(model).resolve().name
    check_place(target, force, REPORT)
    reporter = ConsoleReporter()
    collections = tuple(read_collections(data, "test")) if has_collections(data) else ()
    for collection in collections:
        for warning in collection.warnings:
            reporter.warn(warning)
    benchmark = read_similarity_tasks(data, tasks, reporter, required=not collections)
    with needing("eval,export"):
        import pytrec_eval  # noqa: F401

        from whiten_evaluation.sweep.sweep import SweepPlan, best_table, picture, run_sweep, scores_csv, search_table
    plan = SweepPlan(
        model=model,
        data=benchmark,
        collections=collections,
        cache=cache_folder(),
        layers=chosen,
        options=SessionOptions(providers_for()),
        trust_remote_code=trust_remote_code,
    )
    result = run_sweep(plan, reporter)
    with staged(target, force, REPORT, reporter) as stage:
        (stage / "scores.csv").write_bytes(scores_csv(result).encode())
        picture(result).savefig(stage / "layers.png", metadata={"Software": "whiten"})
        (stage / REPORT.marker).write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    console.say_written(str(target))
    document = {"out": str(target), "warnings": reporter.warnings, "sweep": result}
    if result.tasks or as_json:
        show(*best_table(result), document, as_json)
    if result.collections and not as_json:
        show(*search_table(result), document, as_json)


def cache_folder() -> Path:
    """Return the folder in which graphs and vectors of sweeps are kept: whiten's in XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whiten"
