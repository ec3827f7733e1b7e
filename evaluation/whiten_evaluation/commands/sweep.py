"""Implement `whiten sweep`: measure which layers and which whitening are best for a model."""

import os
import sys
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from whiten_evaluation.commands.options import data_option, tasks_option
from whiten_evaluation.tasks.sts_files import parse_tasks, read_sts
from whiten_export.sources.layers import parse_numbers
from whiten_export.writing.staging import Kind, check_place, staged
from whiten_runtime.bundle.records import Pooling, PoolingMode
from whiten_runtime.commands import console
from whiten_runtime.commands.console import (
    ConsoleReporter,
    device_option,
    json_option,
    one_line_errors,
    quiet_option,
    say,
)
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import UsageError, needing
from whiten_runtime.files.collections import has_collections, read_collections
from whiten_runtime.ort.providers import CPU_PROVIDER, Provider
from whiten_runtime.ort.session import SessionOptions

REPORT = Kind("sweep", "sweep.json")

_POOLINGS = tuple(pooling for pooling in get_args(PoolingMode) if pooling != "sif")


@command(
    section="Evaluate",
    examples=(
        "whiten sweep bert-base --data sts/",
        "whiten sweep minilm --data sts/ --layers 0,1,6 --pooling mean",
    ),
)
@click.argument("model")
@heading("Data")
@data_option
@tasks_option
@heading("Model")
@option("--layers", metavar="L,L", help="Layers to combine. [default: all]")
@option(
    "--pooling",
    "poolings",
    multiple=True,
    type=click.Choice(_POOLINGS),
    metavar="NAME",
    help=f"Pooling of the tokens. One of {', '.join(_POOLINGS)}. Repeatable. [default: mean, cls]",
)
@option("--max-length", type=int, metavar="N", help="Tokens a text may have. [default: the checkpoint's]")
@option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the checkpoint.")
@heading("Output")
@option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of the report. [default: sweeps/NAME]",
)
@option("--force", is_flag=True, help="Replace a report that is already there.")
@json_option
@quiet_option
@heading("Execution")
@option(
    "--cache",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the vectors of all layers are kept. [default: ~/.cache/whiten]",
)
@device_option
@one_line_errors
def sweep(
    model: str,
    data: Path,
    tasks: str | None,
    layers: str | None,
    poolings: tuple[Pooling, ...],
    cache: Path | None,
    out: Path | None,
    force: bool,
    providers: tuple[Provider, ...],
    as_json: bool,
    **choices: Any,
) -> None:
    """Score combinations of a model's layers, and write a report.

    Combinations are scored on the similarity tasks in --data, whitened and not. Single layers and pairs are also
    scored on the search collections there, in the layout of whiten eval retrieval. Texts go through the model once:
    every layer's vectors stay in --cache for the next sweep. MODEL is as for whiten-export.
    """
    target = out or Path("sweeps") / Path(model).resolve().name
    check_place(target, force, REPORT)
    if len(set(poolings)) < len(poolings):
        raise UsageError(f"pooling {', '.join(poolings)} names one twice; name each once")
    collections = tuple(read_collections(data, "test")) if has_collections(data) else ()
    benchmark = read_sts(data, parse_tasks(tasks), required=not collections)
    reporter = ConsoleReporter()
    for line in benchmark.missing():
        reporter.warn(line)
    with needing("eval,export"):
        import pytrec_eval  # noqa: F401

        from whiten_evaluation.sweep.report import html, scores_csv, summary
        from whiten_evaluation.sweep.search_report import search_csv
        from whiten_evaluation.sweep.sweep import SweepPlan, run_sweep
    plan = SweepPlan(
        model=model,
        data=benchmark,
        collections=collections,
        cache=cache or default_cache(),
        layers=None if layers is None else parse_numbers("layers", layers),
        poolings=poolings or ("mean", "cls"),
        options=SessionOptions(providers or (CPU_PROVIDER,)),
        **choices,
    )
    result = run_sweep(plan, reporter)
    with staged(target, force, REPORT) as stage:
        (stage / "report.html").write_text(html(result, reporter.warnings), "utf-8")
        (stage / "scores.csv").write_text(scores_csv(result), "utf-8")
        if collections:
            (stage / "search.csv").write_text(search_csv(result), "utf-8")
        (stage / REPORT.marker).write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    console.say_written(str(target / "report.html"))
    for line in summary(result):
        say(f"  {line}")
    if as_json:
        console.print_json({"out": str(target), "warnings": reporter.warnings, "sweep": result})


def default_cache() -> Path:
    """Return the folder for whiten in the system's cache directory."""
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "whiten"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "whiten"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whiten"
