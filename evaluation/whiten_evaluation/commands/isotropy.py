"""Implement `whiten eval isotropy`: how evenly vectors of given texts use their space, before and after whitening."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from whiten_evaluation.commands.loop import Embed, Scored, run_evaluation
from whiten_evaluation.commands.options import Cell, bundles_argument, check_formats, prompt_option, running_options
from whiten_evaluation.commands.output import check_files, write_files
from whiten_evaluation.embedding import WhiteningSource
from whiten_evaluation.tasks.isotropy import Measured, measure, measure_fitted, specs
from whiten_evaluation.tasks.sts_files import read_sts
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.checks import needing
from whiten_runtime.commands.console import one_line_errors
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.ort.providers import Provider
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import Method, WhiteningSpec, parse_shrinkage

_FIGURES = ("clouds.svg", "isoscore.svg")

Isotropies = tuple[Measured, ...]
"""Holds what was measured of a bundle's vectors, before whitening first."""


class IsotropyEvaluation:
    """Measures isotropy before and after the whitening of a bundle, and after whitenings fitted on the texts."""

    def __init__(
        self, folder: Path | None, inputs: tuple[str, ...], column: str | None, specs: Sequence[WhiteningSpec]
    ) -> None:
        self.whitening = WhiteningSource("target", specs[0]) if specs else WhiteningSource()
        self._specs = specs
        self._folder = folder
        self._inputs = inputs
        self._column = column
        self._absent: Mapping[str, tuple[str, ...]] = {}

    def read(self, reporter: Reporter) -> tuple[str, ...]:
        """Read the texts, and return the distinct ones.

        Raises:
            UsageError: there are fewer than two distinct texts.
        """
        if self._folder is not None:
            tasks = read_sts(self._folder)
            for line in tasks.missing():
                reporter.warn(line)
            self.texts, self._absent = tasks.texts, tasks.absent
        else:
            corpus = Corpus(self._inputs, self._column, None)
            corpus.count()
            self.texts = tuple(dict.fromkeys(corpus))
        if len(self.texts) < 2:
            raise UsageError(f"{len(self.texts)} distinct text has no isotropy; give two or more")
        return self.texts

    def subject(self) -> str:
        """Return the number of texts."""
        return f"{len(self.texts):,} texts"

    def groups(self) -> dict[str, int]:
        """Return the texts as one set, on which whitenings are fitted if a method is named."""
        return {"the texts": len(self.texts)}

    def score(self, bundle: Path, embed: Embed, reporter: Reporter) -> Isotropies:
        """Measure the vectors before whitening, after the bundle's if it has one, and after those that are fitted."""
        before = embed(WhiteningSource("none"))
        found = [measure("before", before.vectors)]
        if read_manifest(bundle).whitening is not None:
            found.append(measure("after", embed(WhiteningSource("bundle")).vectors))
        return (*found, *measure_fitted(before, self._specs))

    def table(self, scored: Sequence[Scored[Isotropies]]) -> tuple[Sequence[str], list[list[Cell]]]:
        """Return one row for each bundle and whitening."""
        rows: list[list[Cell]] = []
        for found in scored:
            names = {
                "before": "before whitening" if len(found.score) > 1 else "not whitened",
                "after": "after whitening",
            }
            for one in found.score:
                name = names.get(one.name, f"{one.name} on these texts")
                rows.append([found.name, name, one.dimension, *map(_four, msgspec.structs.astuple(one.record))])
        return ("bundle", "vectors", "dim", "IsoScore", "average cosine", "partition score"), rows

    def more(self, scored: Sequence[Scored[Isotropies]]) -> str | None:
        """Return no second table."""
        return None

    def document(self, scored: Sequence[Scored[Isotropies]], warnings: Sequence[str]) -> dict[str, Any]:
        """Return the scores before and after, and those of each method that was fitted."""
        bundles = []
        for found in scored:
            records = {one.name: one.record for one in found.score}
            row: dict[str, Any] = {"bundle": found.name}
            row |= {name: records.pop(name) for name in ("before", "after") if name in records}
            bundles.append(row | ({"fitted": records} if records else {}))
        return {"texts": len(self.texts), "absent": self._absent, "bundles": bundles}


@command(
    section="Evaluate",
    examples=(
        "whiten eval isotropy bundles/minilm-l0-l1 --input texts.txt",
        "whiten eval isotropy bundles/minilm-l0-l1 --data sts/ --out figures/",
    ),
)
@bundles_argument
@heading("Data")
@option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The sentences of the STS tasks in DIR. --input is for other texts.",
)
@option(
    "--input",
    "inputs",
    multiple=True,
    metavar="FILE",
    help="Texts: .txt, .jsonl, .csv, .tsv or .parquet. Each may end in .gz too. Repeatable.",
)
@option("--column", metavar="COLUMN", help="Column or key of the text in --input.")
@prompt_option
@heading("Whitening")
@option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(get_args(Method)),
    metavar="NAME",
    help=f"Measure this whitening too. One of {', '.join(get_args(Method))}. It is fitted on the texts themselves. "
    "Repeatable.",
)
@option("--dim", type=click.IntRange(min=1), metavar="K", help="Leading dimensions that --method keeps.")
@option("--beta", type=float, metavar="B", default=1.0, show_default=True, help="Exponent of --method.")
@option(
    "--shrinkage",
    default="none",
    show_default=True,
    metavar="none|ledoit-wolf|oas|A",
    help="Shrink the covariance of --method. A is a weight from 0 to 1.",
)
@heading("Output")
@option(
    "-o",
    "--out",
    "--figures",
    "figures",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write figures to DIR. clouds.svg shows the vectors in two dimensions; the other is isoscore.svg.",
)
@running_options
@one_line_errors
def isotropy(
    bundles: tuple[str, ...],
    data: Path | None,
    inputs: tuple[str, ...],
    column: str | None,
    methods: tuple[Method, ...],
    dim: int | None,
    beta: float,
    shrinkage: str,
    figures: Path | None,
    prompt_name: str | None,
    threads: int | None,
    providers: tuple[Provider, ...],
    as_json: bool,
    as_csv: bool,
) -> None:
    """Measure isotropy of vectors before and after whitening.

    The whitening is the bundle's; others may be fitted on the texts. IsoScore and partition score: 1 is isotropic;
    average cosine, over all pairs: 0 is. The partition score is of unit vectors. Each distinct text counts once.
    """
    check_formats(as_json, as_csv)
    if (data is None) == (not inputs):
        raise UsageError("give either --data DIR or --input FILE, for the texts to measure on")
    if data is not None and column is not None:
        raise UsageError(f"--column '{column}' is for --input; leave it out")
    chosen = specs(methods, dim, beta, parse_shrinkage(shrinkage))
    if not chosen and (dim, beta, shrinkage) != (None, 1.0, "none"):
        raise UsageError("--dim, --beta and --shrinkage are of a whitening that --method names; name one")
    if figures is not None:
        check_files(figures, _FIGURES, "another --out")
        with needing("eval"):
            import matplotlib  # noqa: F401
    evaluation = IsotropyEvaluation(data, inputs, column, chosen)
    write = None if figures is None else partial(write_figures, figures)
    run_evaluation(evaluation, bundles, providers, threads, as_json, as_csv, prompt_name, write)


def write_figures(folder: Path, scored: Sequence[Scored[Isotropies]]) -> None:
    """Write clouds.svg and isoscore.svg into a folder, which is created if it does not exist; replace older ones.

    Raises:
        WhitenError: the files cannot be written.
    """
    from whiten_evaluation.drawing import svg
    from whiten_evaluation.tasks.isotropy_figures import clouds_figure, isoscore_figure

    found = [(one.name, one.score) for one in scored]
    drawn = svg(clouds_figure(found)), svg(isoscore_figure(found))
    write_files(folder, dict(zip(_FIGURES, drawn, strict=True)))


def _four(value: object) -> str:
    return f"{value:.4f}"
