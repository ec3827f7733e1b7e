"""Implement `whiten eval compare`: bundles of different precision, layers or whitening, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from whiten_evaluation.commands.loop import Embed, Scored, run_evaluation
from whiten_evaluation.commands.options import (
    Cell,
    bundles_argument,
    check_formats,
    data_option,
    prompt_option,
    running_options,
    whitening_options,
)
from whiten_evaluation.commands.sts import StsTexts, tasks_option
from whiten_evaluation.embedding import SourceName, WhiteningSource
from whiten_evaluation.tasks.bootstrap import LEVEL
from whiten_evaluation.tasks.comparing import Row, compare_bundles
from whiten_evaluation.tasks.sts import task_cosines
from whiten_evaluation.tasks.sts_files import parse_tasks
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.space import space_of
from whiten_runtime.commands.console import one_line_errors, say
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import UsageError
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.ort.providers import Provider
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import Method, parse_shrinkage
from whiten_whitening.moments import Float64Array


@dataclass(frozen=True)
class Similarities:
    """Holds the cosines of a bundle.

    Attributes:
        dimension: number of coordinates that were compared.
        cosines: cosines of the pairs of each task, [n] for each sub-dataset.
    """

    dimension: int
    cosines: list[list[Float64Array]]


class ComparisonEvaluation(StsTexts):
    """Compares bundles on the similarity tasks, each with the first."""

    def __init__(
        self, folder: Path, tasks: tuple[str, ...], whitening: WhiteningSource, resamples: int, seed: int
    ) -> None:
        super().__init__(folder, tasks, whitening)
        self._resamples = resamples
        self._seed = seed
        self._rows: list[Row] | None = None

    def score(self, bundle: Path, embed: Embed, reporter: Reporter) -> Similarities:
        """Return the cosines of all pairs."""
        vectors, whitening = embed(self.whitening), self.whitening
        width = vectors.vectors.shape[1]
        kept = whitening.spec.dimension or width if whitening.source == "target" else width
        return Similarities(kept, [task_cosines(task, vectors, whitening) for task in self.data.tasks])

    def table(self, scored: Sequence[Scored[Similarities]]) -> tuple[Sequence[str], list[list[Cell]]]:
        """Return a row for each bundle, with its difference to the first."""
        names = [task.name for task in self.data.tasks]
        last = (f"average of {len(names)}", "difference", f"{LEVEL:.0%} from", "to", "")
        return ("bundle", "space", "precision", "dim", "MB", *names, *last), [
            _cells(row) for row in self._compared(scored)
        ]

    def document(self, scored: Sequence[Scored[Similarities]], warnings: Sequence[str]) -> dict[str, Any]:
        """Return the scores and differences, those of each task too."""
        return {
            "whitening": str(self.whitening),
            "absent": self.data.absent,
            "resamples": self._resamples,
            "seed": self._seed,
            "bundles": self._compared(scored),
        }

    def _compared(self, scored: Sequence[Scored[Similarities]]) -> list[Row]:
        """Return the rows of all bundles, computed once for the table and the document."""
        if self._rows is None:
            bundles = [(found.name, read_manifest(found.bundle), found.score.dimension) for found in scored]
            cosines = [found.score.cosines for found in scored]
            self._rows = compare_bundles(self.data, bundles, cosines, self._resamples, self._seed)
        return self._rows


@command(
    section="Evaluate",
    examples=(
        "whiten eval compare bundles/base bundles/base-int8 --data sts/",
        "whiten eval compare bundles/base ORG/NAME --data sts/ --tasks STS-B --json",
    ),
)
@bundles_argument
@heading("Data")
@data_option
@tasks_option
@prompt_option
@heading("Intervals")
@option(
    "--resamples",
    type=click.IntRange(min=100),
    metavar="N",
    default=1000,
    show_default=True,
    help="Resamples of the paired bootstrap.",
)
@option("--seed", type=int, metavar="N", default=0, show_default=True, help="Seed of the bootstrap.")
@whitening_options
@running_options
@one_line_errors
def compare(
    bundles: tuple[str, ...],
    data: Path,
    tasks: str | None,
    resamples: int,
    seed: int,
    source: SourceName,
    method: Method,
    dim: int | None,
    beta: float,
    shrinkage: str,
    prompt_name: str | None,
    threads: int | None,
    providers: tuple[Provider, ...],
    as_json: bool,
    as_csv: bool,
) -> None:
    """Compare bundles on the similarity tasks, each with the first.

    Differences have 95 % intervals. These are those of a paired bootstrap over the pairs of sentences; a star marks
    those without 0.
    """
    check_formats(as_json, as_csv)
    if len(bundles) < 2:
        raise UsageError(f"one bundle, '{bundles[0]}', was given; name two or more to compare")
    if seed < 0:
        raise UsageError(f"seed is {seed}; wanted 0 or more")
    whitening = WhiteningSource.parse(source, dim, beta, method, parse_shrinkage(shrinkage))
    evaluation = ComparisonEvaluation(data, parse_tasks(tasks), whitening, resamples, seed)
    run_evaluation(evaluation, bundles, providers, threads, as_json, as_csv, prompt_name)
    if len({space_of(read_manifest(locate_bundle(bundle))) for bundle in bundles}) > 1:
        say("the bundles are of different spaces: their scores can be compared, their vectors cannot")


def _cells(row: Row) -> list[Cell]:
    cells: list[Cell] = [row.bundle, row.space, row.precision, row.dimension, row.bytes / 1e6]
    cells += [task.mean for task in row.tasks]
    cells.append(row.average)
    if (difference := row.difference) is None:
        return [*cells, None, None, None, ""]
    return [*cells, difference.value, difference.low, difference.high, "*" if difference.certain else ""]
