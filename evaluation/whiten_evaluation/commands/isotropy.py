"""Implement `whiten eval isotropy`: how evenly vectors of given texts use their space, before and after whitening."""

from pathlib import Path
from typing import Any, get_args

import click
import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_evaluation.commands.options import Cell, Run, prompt_option, running_options
from whiten_evaluation.embedding import WhiteningSource
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.records import IsotropyRecord
from whiten_runtime.commands.console import one_line_errors
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.inference.vectors import unit
from whiten_whitening.isotropy import average_cosine, iso_score, partition_score
from whiten_whitening.maps import Method, WhiteningSpec, parse_shrinkage, whitened
from whiten_whitening.moments import Moments


@command(
    section="Evaluate",
    examples=(
        "whiten eval isotropy bundles/minilm-l0-l1 --input texts.txt",
        "whiten eval isotropy bundles/minilm-l0-l1 --data sts/ --whitening pca",
    ),
)
@one_line_errors
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
    "--whitening",
    "methods",
    multiple=True,
    type=click.Choice(get_args(Method)),
    metavar="NAME",
    help=f"Measure this whitening too. One of {', '.join(get_args(Method))}. It is fitted on the texts themselves. "
    "Repeatable.",
)
@option("--dim", type=click.IntRange(min=1), metavar="K", help="Leading dimensions that --whitening keeps.")
@option(
    "--shrinkage",
    default="none",
    show_default=True,
    metavar="none|ledoit-wolf|oas|A",
    help="Shrink the covariance of --whitening. A is a weight from 0 to 1.",
)
@running_options
def isotropy(
    data: Path | None,
    inputs: tuple[str, ...],
    column: str | None,
    methods: tuple[Method, ...],
    dim: int | None,
    shrinkage: str,
    run: Run,
) -> None:
    """Measure isotropy of vectors before and after whitening.

    The whitening is the bundle's; others may be fitted on the texts. Isotropic vectors have an IsoScore and a partition
    score (of unit vectors) of 1, and an average cosine over all pairs of 0. Each distinct text counts once.
    """
    if (data is None) == (not inputs):
        raise UsageError("give either --data DIR or --input FILE, for the texts to measure on")
    if data is not None and column is not None:
        raise UsageError(f"--column '{column}' is for --input; leave it out")
    specs = [WhiteningSpec(method, dim, shrinkage=parse_shrinkage(shrinkage)) for method in dict.fromkeys(methods)]
    if not specs and (dim, shrinkage) != (None, "none"):
        raise UsageError("--dim and --shrinkage need a whitening; name one with --whitening")
    texts, absent = _texts(data, inputs, column, run)
    checked = WhiteningSource("task", specs[0]) if specs else WhiteningSource()
    rows: list[list[Cell]] = []
    documents = []
    for bundle in run.over(texts, checked, {"the texts": len(texts)}, f"{len(texts):,} texts"):
        before = bundle.embed(WhiteningSource("none"))
        vectors_of: dict[str, NDArray[np.floating]] = {"before": before.vectors}
        if read_manifest(bundle.path).whitening is not None:
            vectors_of["after"] = bundle.embed(WhiteningSource("bundle")).vectors
        for spec in specs:
            vectors_of[spec.method] = whitened(before.of(texts), before.fit(texts, spec, "the texts"))
        records = {name: measure(vectors) for name, vectors in vectors_of.items()}
        names = {"before": "before whitening" if len(vectors_of) > 1 else "not whitened", "after": "after whitening"}
        for name, record in records.items():
            shown = (f"{value:.4f}" for value in msgspec.structs.astuple(record))
            rows.append([bundle.name, names.get(name, f"{name} on these texts"), vectors_of[name].shape[1], *shown])
        document: dict[str, Any] = {"bundle": bundle.name}
        document |= {name: records.pop(name) for name in names if name in records}
        documents.append(document | ({"fitted": records} if records else {}))
    header = ("bundle", "vectors", "dim", "IsoScore", "average cosine", "partition score")
    run.show(header, rows, {"texts": len(texts), "absent": absent, "bundles": documents})


def measure(vectors: NDArray[np.floating]) -> IsotropyRecord:
    """Measure the isotropy of vectors, [n, d]; the partition score is of unit vectors."""
    moments = Moments.of(vectors)
    return IsotropyRecord(
        iso_score=iso_score(moments.covariance),
        average_cosine=average_cosine(moments),
        partition_score=partition_score(unit(vectors)),
    )


def _texts(data: Path | None, inputs: tuple[str, ...], column: str | None, run: Run) -> tuple[tuple[str, ...], Any]:
    """Return the distinct texts, two or more, and the tasks of --data that are absent."""
    if data is not None:
        tasks = run.read_sts(data)
        texts, absent = tasks.texts, tasks.absent
    else:
        corpus = Corpus(inputs, column, None)
        corpus.count()
        texts, absent = tuple(dict.fromkeys(corpus)), {}
    if len(texts) < 2:
        raise UsageError(f"{len(texts)} distinct text has no isotropy; give two or more")
    return texts, absent
