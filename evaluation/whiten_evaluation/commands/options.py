"""Define what the commands of `whiten eval` share: options, the loop over bundles, and tables in three formats."""

import csv
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce, wraps
from pathlib import Path
from typing import Any, get_args

import click

from whiten_evaluation.embedding import SourceName, TextVectors, WhiteningSource, check_bundles, embed_texts
from whiten_evaluation.tasks.sts_files import SUBSETS, StsData, parse_tasks, read_sts
from whiten_runtime.commands import console
from whiten_runtime.commands.console import (
    ConsoleReporter,
    device_option,
    echo,
    given_text,
    json_option,
    quiet_option,
)
from whiten_runtime.commands.help import heading, option
from whiten_runtime.errors import UsageError
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.ort.providers import CPU_PROVIDER, Provider
from whiten_runtime.ort.session import SessionOptions
from whiten_whitening.maps import Method, parse_shrinkage

Cell = str | int | float | None

data_option = option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the files lie. Folders in it are searched too.",
)
prompt_option = option(
    "--prompt-name",
    metavar="NAME",
    callback=given_text,
    help="Prompt of the bundle, such as query. Every text gets it. Without it, each bundle's default prompt.",
)
tasks_option = option(
    "--tasks", metavar="T,T", help=f"Some of the tasks, with commas. They are {','.join(SUBSETS)}. [default: all]"
)


def _whitening(fitted: SourceName, what: str) -> tuple[Callable[..., Any], ...]:
    """Return the options of a whitening, which may be fitted on texts of the evaluation."""
    return (
        heading("Whitening"),
        option(
            "--fit-on",
            "source",
            type=click.Choice(("bundle", fitted, "none")),
            metavar="WHICH",
            default="bundle",
            show_default=True,
            help=f"Whitening to score: bundle, {fitted} or none. bundle is the bundle's own; {fitted} is fitted on "
            f"{what}.",
        ),
        option(
            "--whitening",
            "method",
            type=click.Choice(get_args(Method)),
            metavar="METHOD",
            default="pca",
            show_default=True,
            help=f"Method of --fit-on {fitted}. One of {', '.join(get_args(Method))}. At full dimension they "
            "differ only by a rotation.",
        ),
        option("--dim", type=click.IntRange(min=1), metavar="K", help="Keep the K leading dimensions."),
        option(
            "--shrinkage",
            default="none",
            show_default=True,
            metavar="none|ledoit-wolf|oas|A",
            help=f"Shrink the covariance of --fit-on {fitted}. A is a weight from 0 to 1.",
        ),
    )


_OF_TASK = _whitening("task", "each task's own sentences, as WhiteningBERT does")
_OF_CORPUS = _whitening("corpus", "the documents that are searched")
_RUNNING = (
    heading("Output"),
    json_option,
    option("--csv", "as_csv", is_flag=True, help="Print comma-separated values on stdout."),
    quiet_option,
    heading("Execution"),
    device_option,
)


def whitening_options(
    command: Callable[..., Any], options: Sequence[Callable[..., Any]] = _OF_TASK
) -> Callable[..., Any]:
    """Pass --fit-on, --whitening, --dim and --shrinkage to a command as one `WhiteningSource`."""

    @wraps(command)
    def parsed(
        *arguments: Any, source: SourceName, method: Method, dim: int | None, shrinkage: str, **rest: Any
    ) -> Any:
        whitening = WhiteningSource.parse(source, dim, method, parse_shrinkage(shrinkage))
        return command(*arguments, whitening=whitening, **rest)

    return with_options(parsed, options)


def corpus_whitening_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the same options to a command that fits a whitening on the documents that are searched."""
    return whitening_options(command, _OF_CORPUS)


def with_options(command: Callable[..., Any], options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return a command with options, in their order."""
    return reduce(lambda wrapped, add: add(wrapped), reversed(options), command)


def running_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the bundles and the options of output and execution to a command as one `Run`; check them."""

    @wraps(command)
    def parsed(
        *arguments: Any,
        bundles: tuple[str, ...],
        providers: tuple[Provider, ...],
        as_json: bool,
        as_csv: bool,
        prompt_name: str | None = None,
        **rest: Any,
    ) -> Any:
        if as_json and as_csv:
            raise UsageError("--json and --csv both write to stdout; choose one")
        options = SessionOptions(providers or (CPU_PROVIDER,))
        return command(*arguments, run=Run(bundles, prompt_name, options, as_json, as_csv, ConsoleReporter()), **rest)

    bundles_argument = click.argument("bundles", nargs=-1, required=True, metavar="BUNDLE...", type=click.Path())
    return bundles_argument(with_options(parsed, _RUNNING))


@dataclass(frozen=True)
class Embedded:
    """A bundle under evaluation."""

    name: str  # as it was named: a directory, or a repository of the model hub
    path: Path
    embed: Callable[[WhiteningSource], TextVectors]  # embeds all texts of the evaluation
    seconds: dict[str, float]  # "embed" and, once the next bundle has begun, "score"


@dataclass(frozen=True)
class Run:
    """The bundles of an evaluation, and how they are run and shown."""

    bundles: tuple[str, ...]
    prompt_name: str | None
    options: SessionOptions
    as_json: bool
    as_csv: bool
    reporter: ConsoleReporter

    def located(self, whitening: WhiteningSource, groups: Mapping[str, int]) -> list[tuple[str, Path]]:
        """Return names and paths of the bundles, which fit the whitening and the groups that it is fitted on."""
        paths = list(map(locate_bundle, self.bundles))
        check_bundles(paths, whitening, groups, self.prompt_name)
        return list(zip(self.bundles, paths, strict=True))

    def over(
        self, texts: Sequence[str], whitening: WhiteningSource, groups: Mapping[str, int], subject: str
    ) -> Iterator[Embedded]:
        """Yield the bundles, once all of them are known to fit the whitening and the groups that it is fitted on."""
        for name, path in self.located(whitening, groups):
            self.reporter.stage(f"{name}: {subject}")
            started, seconds = time.monotonic(), {"embed": 0.0}

            def embed(whitening: WhiteningSource, path: Path = path, spent: dict[str, float] = seconds) -> TextVectors:
                before = time.monotonic()
                vectors = embed_texts(path, texts, whitening, self.options, self.reporter, self.prompt_name)
                spent["embed"] += time.monotonic() - before
                return vectors

            yield Embedded(name, path, embed, seconds)
            seconds["score"] = time.monotonic() - started - seconds["embed"]

    def read_sts(self, folder: Path, tasks: str | None = None) -> StsData:
        """Read the similarity tasks, and warn of those that are absent."""
        data = read_sts(folder, parse_tasks(tasks))
        for line in data.missing():
            self.reporter.warn(line)
        return data

    def show(
        self, header: Sequence[str], rows: Sequence[Sequence[Cell]], document: object, more: str | None = None
    ) -> None:
        """Print a table for people with `more` below it, the document for programs, or exact numbers as csv."""
        if self.as_json:
            console.print_json(document)
        elif self.as_csv:
            stream = io.StringIO(newline="")
            csv.writer(stream, lineterminator="\n").writerows([header, *rows])
            echo(stream.getvalue(), nl=False)
        else:
            echo(table_text(header, rows) + (f"\n\n{more}" if more else ""))


def table_text(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table for people: numbers with two decimals, None as a dash."""
    return console.table(header, [[_shown(cell) for cell in row] for row in rows])


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:.2f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell
