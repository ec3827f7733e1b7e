"""Implement `whiten eval codes`: how well codes of a few bytes keep similarities."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from whiten_evaluation.commands.loop import Embed, Scored, run_evaluation
from whiten_evaluation.commands.options import (
    Cell,
    bundles_argument,
    check_formats,
    data_option,
    prompt_option,
    running_options,
)
from whiten_evaluation.commands.output import write_files
from whiten_evaluation.commands.sts import StsTexts, tasks_option
from whiten_evaluation.embedding import WhiteningSource
from whiten_evaluation.tasks.codes import SIZES, CodeScore, score_codes
from whiten_evaluation.tasks.sts_files import parse_tasks
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.checks import needing
from whiten_runtime.commands.console import one_line_errors
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import UsageError
from whiten_runtime.files.replacing import check_file_place
from whiten_runtime.ort.providers import Provider
from whiten_runtime.reporter import Reporter

Scores = tuple[CodeScore, ...]


class CodesEvaluation(StsTexts):
    """Scores codes of several sizes on the similarity tasks."""

    def __init__(self, folder: Path, tasks: tuple[str, ...], sizes: Sequence[int]) -> None:
        super().__init__(folder, tasks, WhiteningSource())
        self._sizes = sizes

    def score(self, bundle: Path, embed: Embed, reporter: Reporter) -> Scores:
        """Score all kinds of codes."""
        if read_manifest(bundle).whitening is None:
            reporter.warn(
                f"{bundle}: has no whitening and stores no moments, so only kinds that need none are scored; "
                "whiten refit BUNDLE --corpus FILE --whitening pca --beta 0 --out OTHER stores them"
            )
        return score_codes(bundle, self.data, embed(self.whitening), self._sizes)

    def table(self, scored: Sequence[Scored[Scores]]) -> tuple[Sequence[str], list[list[Cell]]]:
        """Return a row for each kind, the largest first, with the difference to float32."""
        rows: list[list[Cell]] = []
        for found in scored:
            whole = found.score[0].spearman
            for one in sorted(found.score, key=lambda one: -one.bytes):
                own: list[Cell] = [one.name, one.dims, one.bytes, one.spearman, one.spearman - whole]
                rows.append([found.name, *own, "*" if one.front else ""])
        return ("bundle", "code", "dims", "bytes", "mean", "float32", "front"), rows

    def document(self, scored: Sequence[Scored[Scores]], warnings: Sequence[str]) -> dict[str, Any]:
        """Return the scores, also of each task."""
        return {
            "sentences": len(self.data.texts),
            "absent": self.data.absent,
            "bundles": [{"bundle": found.name, "codes": msgspec.to_builtins(found.score)} for found in scored],
        }


@command(
    section="Evaluate",
    examples=(
        "whiten eval codes bundles/minilm-l0-l1 --data sts/",
        "whiten eval codes bundles/minilm-l0-l1 --data sts/ --bytes 64 --out codes.svg",
    ),
)
@bundles_argument
@heading("Data")
@data_option
@tasks_option
@prompt_option
@heading("Codes")
@option(
    "--bytes",
    "sizes",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="B",
    help="Bytes of a code. Repeatable. [default: 16, 32, 48, 64, 96, 128 and 192, as far as the vectors need them]",
)
@heading("Output")
@option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw score over bytes: a .png or .svg file.",
)
@running_options
@one_line_errors
def codes(
    bundles: tuple[str, ...],
    data: Path,
    tasks: str | None,
    sizes: tuple[int, ...],
    out: Path | None,
    prompt_name: str | None,
    threads: int | None,
    providers: tuple[Provider, ...],
    as_json: bool,
    as_csv: bool,
) -> None:
    """Score codes of a few bytes a vector on the STS tasks.

    Beside them stand float32, int8 with a scale for each vector, and signs. mean is that of the tasks, each as
    whiten eval sts has it; float32 is the difference to the whole vectors. Both texts of a pair are coded. Kinds
    with a * in the column front have the best score in as few bytes.
    """
    check_formats(as_json, as_csv)
    if out is not None:
        if out.suffix not in (".png", ".svg"):
            raise UsageError(f"--out is '{out}'; wanted a .png or .svg file")
        if not out.parent.is_dir():
            raise UsageError(f"'{out.parent}' is not a directory; create it first")
        check_file_place(out, "another --out")
        with needing("eval"):
            import matplotlib  # noqa: F401
    evaluation = CodesEvaluation(data, parse_tasks(tasks), sizes or SIZES)

    def draw(scored: Sequence[Scored[Scores]]) -> None:
        if out is not None:
            write_figure(out, scored)

    run_evaluation(evaluation, bundles, providers, threads, as_json, as_csv, prompt_name, draw)


def write_figure(out: Path, scored: Sequence[Scored[Scores]]) -> None:
    """Write the picture; replace an older one.

    Raises:
        WhitenError: the file cannot be written.
    """
    from whiten_evaluation.drawing import png, svg
    from whiten_evaluation.tasks.codes_figure import codes_figure

    figure = codes_figure([(one.name, one.score) for one in scored])
    write_files(out.parent, {out.name: (svg if out.suffix == ".svg" else png)(figure)})
