"""`whiten eval rte`: textual entailment by cosine, without training."""

from pathlib import Path
from typing import Any

import click

from whiten_evaluation.commands.options import (
    Cell,
    bundles_argument,
    check_formats,
    data_option,
    evaluation_options,
    session_options,
    show,
)
from whiten_evaluation.embedding import Source, Whitening, check_bundles, embed_texts
from whiten_evaluation.tasks.rte import read_entailment, score_entailment
from whiten_runtime.commands.console import one_line_errors
from whiten_runtime.commands.console_reporter import ConsoleReporter
from whiten_runtime.ort.providers import Provider


@click.command()
@bundles_argument
@data_option
@click.option(
    "--threshold",
    type=click.FloatRange(-1, 1),
    default=0.5,
    show_default=True,
    metavar="T",
    help="A cosine above T is entailment.",
)
@evaluation_options
@one_line_errors
def rte(
    bundles: tuple[Path, ...],
    data: Path,
    threshold: float,
    source: Source,
    dim: int | None,
    beta: float,
    threads: int | None,
    providers: tuple[Provider, ...],
    as_json: bool,
    as_csv: bool,
) -> None:
    """Decide entailment on the dev split of RTE by the cosine of the two sentences: accuracy, times 100.

    majority is what always giving the more frequent answer scores; entailed, how often entailment was decided.
    """
    check_formats(as_json, as_csv)
    whitening = Whitening.parse(source, dim, beta)
    reporter = ConsoleReporter()
    pairs = read_entailment(data)
    check_bundles(bundles, whitening, {"RTE": 2 * len(pairs.first)})
    rows: list[list[Cell]] = []
    documents: list[dict[str, Any]] = []
    for bundle in bundles:
        reporter.stage(f"{bundle}: {len(pairs.first):,} pairs, whitening {whitening}")
        texts = pairs.first + pairs.second
        vectors = embed_texts(bundle, texts, whitening, session_options(providers, threads), reporter)
        score = score_entailment(pairs, vectors, whitening, threshold)
        rows.append([str(bundle), score.n, score.accuracy, score.majority, score.entailed])
        documents.append({"bundle": str(bundle), "score": score})
    document = {
        "whitening": str(whitening),
        "threshold": threshold,
        "file": str(pairs.file),
        "bundles": documents,
    }
    show(("bundle", "pairs", "accuracy", "majority", "entailed"), rows, document, as_json, as_csv)
