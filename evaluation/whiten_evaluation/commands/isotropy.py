"""`whiten eval isotropy`: how evenly a bundle's vectors of given texts use their space, before and after whitening."""

from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from whiten_evaluation.commands.options import Cell, bundles_argument, check_formats, csv_option, session_options, show
from whiten_evaluation.embedding import TextVectors, Whitening, check_bundles, embed_texts
from whiten_evaluation.tasks.sts_files import read_sts
from whiten_runtime.bundle.manifest import IsotropyRecord, read_manifest
from whiten_runtime.commands.console import json_option, one_line_errors, provider_option, threads_option
from whiten_runtime.commands.console_reporter import ConsoleReporter
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.inference.embedder import unit
from whiten_runtime.ort.providers import Provider
from whiten_whitening.isotropy import average_cosine, iso_score, partition_score
from whiten_whitening.moments import Moments


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
    reporter = ConsoleReporter()
    absent: Mapping[str, tuple[str, ...]] = {}
    if data is not None:
        tasks = read_sts(data)
        for line in tasks.missing():
            reporter.warn(line)
        texts, absent = tasks.texts, tasks.absent
    else:
        corpus = Corpus(inputs, column, None)
        corpus.count()
        texts = tuple(dict.fromkeys(corpus))
    if len(texts) < 2:
        raise UsageError(f"{len(texts)} distinct text has no isotropy; give two or more")
    check_bundles(bundles, Whitening(), {})
    rows: list[list[Cell]] = []
    documents = []
    for bundle in bundles:
        manifest = read_manifest(bundle)
        reporter.stage(f"{bundle}: {len(texts):,} texts")
        measured = {}
        for name, whitening in (("before", Whitening("none")), ("after", Whitening("bundle"))):
            if name == "after" and manifest.whitening is None:
                continue
            vectors = embed_texts(bundle, texts, whitening, session_options(providers, threads), reporter)
            found = measure(vectors)
            measured[name] = found
            label = f"{name} whitening" if manifest.whitening else "not whitened"
            rows.append([str(bundle), label, vectors.vectors.shape[1], *map(_four, msgspec.structs.astuple(found))])
        documents.append({"bundle": str(bundle), **measured})
    header = ("bundle", "vectors", "dim", "IsoScore", "average cosine", "partition score")
    show(header, rows, {"texts": len(texts), "absent": absent, "bundles": documents}, as_json, as_csv)


def measure(vectors: TextVectors) -> IsotropyRecord:
    """The three scores of distinct texts' vectors."""
    moments = Moments.of(vectors.vectors)
    return IsotropyRecord(
        iso_score=iso_score(moments.covariance),
        average_cosine=average_cosine(moments),
        partition_score=partition_score(unit(vectors.vectors)),
    )


def _four(value: object) -> str:
    return f"{value:.4f}"
