"""Implement `whiten eval isotropy`: how evenly vectors of given texts use their space, before and after whitening."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from whiten_evaluation.commands.loop import Embed, Scored, run_evaluation
from whiten_evaluation.commands.options import Cell, bundles_argument, check_formats, csv_option, prompt_option
from whiten_evaluation.embedding import TextVectors, WhiteningSource
from whiten_evaluation.tasks.sts_files import read_sts
from whiten_runtime.bundle.manifest import IsotropyRecord, read_manifest
from whiten_runtime.commands.console import json_option, one_line_errors, provider_option, threads_option
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.inference.vectors import unit
from whiten_runtime.ort.providers import Provider
from whiten_runtime.reporter import Reporter
from whiten_whitening.isotropy import average_cosine, iso_score, partition_score
from whiten_whitening.moments import Moments


@dataclass(frozen=True)
class Isotropies:
    """Holds the isotropy of a bundle's vectors.

    Attributes:
        before: isotropy of the vectors before whitening.
        after: isotropy of the finished vectors; None without a whitening.
        width: number of coordinates of a vector before whitening.
        dimension: number of coordinates of a finished vector.
    """

    before: IsotropyRecord
    after: IsotropyRecord | None
    width: int
    dimension: int


class IsotropyEvaluation:
    """Measures isotropy before and after the whitening of a bundle."""

    whitening = WhiteningSource()

    def __init__(self, folder: Path | None, inputs: tuple[str, ...], column: str | None) -> None:
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
        """Return no sets, as nothing is fitted."""
        return {}

    def score(self, bundle: Path, embed: Embed, reporter: Reporter) -> Isotropies:
        """Measure the vectors before whitening and, if there is one, after it."""
        before = embed(WhiteningSource("none"))
        after = embed(WhiteningSource("bundle")) if read_manifest(bundle).whitening is not None else None
        width = before.vectors.shape[1]
        if after is None:
            return Isotropies(measure(before), None, width, width)
        return Isotropies(measure(before), measure(after), width, after.vectors.shape[1])

    def table(self, scored: Sequence[Scored[Isotropies]]) -> tuple[Sequence[str], list[list[Cell]]]:
        """Return one row or two for each bundle."""
        rows: list[list[Cell]] = []
        for found in scored:
            score, bundle = found.score, str(found.bundle)
            label = "before whitening" if score.after else "not whitened"
            rows.append([bundle, label, score.width, *map(_four, msgspec.structs.astuple(score.before))])
            if score.after:
                after = map(_four, msgspec.structs.astuple(score.after))
                rows.append([bundle, "after whitening", score.dimension, *after])
        return ("bundle", "vectors", "dim", "IsoScore", "average cosine", "partition score"), rows

    def more(self, scored: Sequence[Scored[Isotropies]]) -> str | None:
        """Return no second table."""
        return None

    def document(self, scored: Sequence[Scored[Isotropies]], warnings: Sequence[str]) -> dict[str, Any]:
        """Return the scores before and after."""
        bundles = []
        for found in scored:
            row: dict[str, Any] = {"bundle": str(found.bundle), "before": found.score.before}
            bundles.append(row | ({"after": found.score.after} if found.score.after else {}))
        return {"texts": len(self.texts), "absent": self._absent, "bundles": bundles}


@click.command()
@bundles_argument
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="The sentences of the STS tasks in DIR.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="FILE",
    help="Texts instead: .txt, .jsonl, .csv, .tsv, .parquet (.gz). Repeatable.",
)
@click.option("--column", help="Column or key of the text in --input.")
@prompt_option
@threads_option
@provider_option
@json_option
@csv_option
@one_line_errors
def isotropy(
    bundles: tuple[Path, ...],
    data: Path | None,
    inputs: tuple[str, ...],
    column: str | None,
    prompt_name: str | None,
    threads: int | None,
    providers: tuple[Provider, ...],
    as_json: bool,
    as_csv: bool,
) -> None:
    """Measure isotropy of vectors before and after the bundle's whitening.

    IsoScore and partition score: 1 is isotropic; average cosine, over all pairs: 0 is. The partition score is of unit
    vectors. Each distinct text counts once.
    """
    check_formats(as_json, as_csv)
    if (data is None) == (not inputs):
        raise UsageError("give either --data DIR or --input FILE, for the texts to measure on")
    if data is not None and column is not None:
        raise UsageError(f"--column '{column}' is for --input; leave it out")
    evaluation = IsotropyEvaluation(data, inputs, column)
    run_evaluation(evaluation, bundles, providers, threads, as_json, as_csv, prompt_name)


def measure(vectors: TextVectors) -> IsotropyRecord:
    """Return the three measures of isotropy of distinct texts' vectors."""
    moments = Moments.of(vectors.vectors)
    return IsotropyRecord(
        iso_score=iso_score(moments.covariance),
        average_cosine=average_cosine(moments),
        partition_score=partition_score(unit(vectors.vectors)),
    )


def _four(value: object) -> str:
    return f"{value:.4f}"
