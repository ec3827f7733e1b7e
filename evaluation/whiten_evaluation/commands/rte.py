"""Implement `whiten eval rte`: textual entailment by cosine, without training."""

from collections.abc import Sequence
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
from whiten_evaluation.embedding import SourceName, WhiteningSource
from whiten_evaluation.tasks.rte import EntailmentScore, read_entailment, score_entailment
from whiten_runtime.commands.console import one_line_errors
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.ort.providers import Provider
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import Method, parse_shrinkage


class EntailmentEvaluation:
    """Decides entailment by a threshold on cosines."""

    def __init__(self, folder: Path, threshold: float, whitening: WhiteningSource) -> None:
        self.whitening = whitening
        self._folder = folder
        self._threshold = threshold

    def read(self, reporter: Reporter) -> tuple[str, ...]:
        """Read the pairs."""
        self.pairs = read_entailment(self._folder)
        return self.pairs.first + self.pairs.second

    def subject(self) -> str:
        """Return the number of pairs and the whitening."""
        return f"{len(self.pairs.first):,} pairs, whitening {self.whitening}"

    def groups(self) -> dict[str, int]:
        """Return the sentences of both columns as one set."""
        return {"RTE": 2 * len(self.pairs.first)}

    def score(self, bundle: Path, embed: Embed, reporter: Reporter) -> EntailmentScore:
        """Decide entailment for all pairs, and score the decisions."""
        return score_entailment(self.pairs, embed(self.whitening), self.whitening, self._threshold)

    def table(self, scored: Sequence[Scored[EntailmentScore]]) -> tuple[Sequence[str], list[list[Cell]]]:
        """Return a row for each bundle."""
        found = [(one.name, one.score) for one in scored]
        rows: list[list[Cell]] = [
            [bundle, score.n, score.accuracy, score.majority, score.entailed] for bundle, score in found
        ]
        return ("bundle", "pairs", "accuracy", "majority", "entailed"), rows

    def more(self, scored: Sequence[Scored[EntailmentScore]]) -> str | None:
        """Return no second table."""
        return None

    def document(self, scored: Sequence[Scored[EntailmentScore]], warnings: Sequence[str]) -> dict[str, Any]:
        """Return the scores, with the threshold and the file that was read."""
        return {
            "whitening": str(self.whitening),
            "threshold": self._threshold,
            "file": str(self.pairs.file),
            "bundles": [{"bundle": found.name, "score": found.score} for found in scored],
        }


@command(
    section="Evaluate",
    examples=(
        "whiten eval rte bundles/minilm-l0-l1 --data RTE/",
        "whiten eval rte bundles/minilm-l0-l1 --data RTE/ --threshold 0.6",
    ),
)
@bundles_argument
@heading("Data")
@data_option
@option(
    "--threshold",
    type=click.FloatRange(-1, 1),
    default=0.5,
    show_default=True,
    metavar="T",
    help="A cosine above T is entailment.",
)
@prompt_option
@whitening_options
@running_options
@one_line_errors
def rte(
    bundles: tuple[str, ...],
    data: Path,
    threshold: float,
    method: Method,
    shrinkage: str,
    source: SourceName,
    dim: int | None,
    beta: float,
    prompt_name: str | None,
    threads: int | None,
    providers: tuple[Provider, ...],
    as_json: bool,
    as_csv: bool,
) -> None:
    """Decide entailment by the cosine of two sentences, on RTE.

    The dev split is used; the score is the accuracy, times 100. majority is what always giving the more frequent
    answer scores; entailed, how often entailment was decided.
    """
    check_formats(as_json, as_csv)
    evaluation = EntailmentEvaluation(
        data, threshold, WhiteningSource.parse(source, dim, beta, method, parse_shrinkage(shrinkage))
    )
    run_evaluation(evaluation, bundles, providers, threads, as_json, as_csv, prompt_name)
