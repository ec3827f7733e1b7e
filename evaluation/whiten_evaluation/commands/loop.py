"""Run the loop that the commands of `whiten eval` share: read, check the bundles, embed, score, show."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from whiten_evaluation.commands.options import Cell, session_options, show
from whiten_evaluation.embedding import TextVectors, WhiteningSource, check_bundles, embed_texts
from whiten_runtime.commands.bars import ConsoleReporter
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.ort.providers import Provider
from whiten_runtime.reporter import Reporter

Score = TypeVar("Score")

Embed = Callable[[WhiteningSource], TextVectors]
"""A function that embeds all texts of an evaluation with the current bundle, whitened as requested."""


@dataclass(frozen=True)
class Scored(Generic[Score]):
    """Holds the result of an evaluation on one bundle.

    Attributes:
        name: the bundle as it was named: a directory, or a repository of the model hub.
        bundle: directory of the bundle.
        score: result, of a type that depends on the evaluation.
        seconds: time that each step took, "embed" and "score".
    """

    name: str
    bundle: Path
    score: Score
    seconds: dict[str, float]


class Evaluation(Protocol[Score]):
    """Defines the steps of one of the papers' protocols, which `run_evaluation` calls.

    Attributes:
        whitening: whitening of the vectors.
    """

    whitening: WhiteningSource

    def read(self, reporter: Reporter) -> tuple[str, ...]:
        """Read the data, and return every text that bundles have to embed."""

    def subject(self) -> str:
        """Return a description of the data, such as "1,379 pairs"."""

    def groups(self) -> Mapping[str, int]:
        """Return the sets of sentences on which a whitening may be fitted, by name, with their sizes."""

    def score(self, bundle: Path, embed: Embed, reporter: Reporter) -> Score:
        """Embed the texts and score a bundle."""

    def table(self, scored: Sequence[Scored[Score]]) -> tuple[Sequence[str], list[list[Cell]]]:
        """Return the header and the rows of the table."""

    def more(self, scored: Sequence[Scored[Score]]) -> str | None:
        """Return a second table for people, which is printed below the first; None for no other."""

    def document(self, scored: Sequence[Scored[Score]], warnings: Sequence[str]) -> dict[str, Any]:
        """Return the document that --json prints."""


def run_evaluation(
    evaluation: Evaluation[Score],
    bundles: Sequence[str],
    providers: Sequence[Provider],
    threads: int | None,
    as_json: bool,
    as_csv: bool,
    prompt_name: str | None = None,
    write: Callable[[Sequence[Scored[Score]]], object] | None = None,
) -> None:
    """Evaluate bundles one after the other, and print the table.

    Args:
        evaluation: the evaluation to run.
        bundles: directories of the bundles, or repositories of the model hub.
        providers: execution providers, as --provider gives them; none for the CPU.
        threads: threads of a call, as --threads gives them.
        as_json: print the document.
        as_csv: print csv.
        prompt_name: name of the prompt that every text gets; None for each bundle's default.
        write: writes files of the results, before the table is printed.

    Raises:
        UsageError: the data, a bundle and the whitening do not fit one another.
        BundleError: a directory is not a bundle, or is incomplete.
        DataError: a file is malformed, or a vector is not finite.
    """
    options, reporter = session_options(providers, threads), ConsoleReporter()
    texts = evaluation.read(reporter)
    paths = list(map(locate_bundle, bundles))
    check_bundles(paths, evaluation.whitening, evaluation.groups(), prompt_name)
    scored = []
    for name, bundle in zip(bundles, paths, strict=True):
        reporter.stage(f"{name}: {evaluation.subject()}")
        started, spent = time.monotonic(), [0.0]

        def embed(whitening: WhiteningSource, bundle: Path = bundle, spent: list[float] = spent) -> TextVectors:
            before = time.monotonic()
            vectors = embed_texts(bundle, texts, whitening, options, reporter, prompt_name)
            spent[0] += time.monotonic() - before
            return vectors

        score = evaluation.score(bundle, embed, reporter)
        rest = time.monotonic() - started - spent[0]
        scored.append(Scored(name, bundle, score, {"embed": spent[0], "score": rest}))
    if write is not None:
        write(scored)
    header, rows = evaluation.table(scored)
    document = evaluation.document(scored, reporter.warnings)
    show(header, rows, document, as_json, as_csv, evaluation.more(scored))
