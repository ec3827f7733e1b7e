"""Implement `whiten fit`, `whiten merge`, `whiten refit`: give a bundle another whitening, where it runs."""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_args

import click

from whiten_export.commands import shared
from whiten_export.corpus.statistics import Statistics, load_statistics, save_statistics
from whiten_export.pipeline.recipe import Recipe
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.records import VectorType
from whiten_runtime.commands import console
from whiten_runtime.commands.console import (
    ConsoleReporter,
    bundle_argument,
    json_option,
    one_line_errors,
    quiet_option,
    say,
)
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import UsageError, needing
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.files.replacing import check_file_place
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.ort.providers import providers_for
from whiten_runtime.ort.session import SessionOptions
from whiten_whitening.isotropy import average_cosine, iso_score
from whiten_whitening.maps import Method, WhiteningSpec, parse_shrinkage

_out_option = option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File of the statistics.",
)


def _fitting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that fit and refit share."""
    options = (
        heading("Corpus"),
        option(
            "--corpus",
            multiple=True,
            metavar="FILE",
            help="Sentences to fit on. Files of .txt, .jsonl, .csv, .tsv, .parquet (.gz), or "
            f"{BUILTIN_CORPUS} for the built-in English ones. Repeatable.",
        ),
        option("--column", metavar="COLUMN", help="Column or key of the sentence in --corpus."),
        option(
            "--max-sentences",
            type=click.IntRange(min=1),
            metavar="N",
            help="Use N sentences, spread over the corpus.",
        ),
    )
    return reduce(lambda wrapped, one: one(wrapped), reversed(options), command)


@command(
    section="Make a bundle",
    examples=(
        "whiten fit bundles/minilm-l0-l1 --corpus mine.txt --out mine.stats",
        "whiten fit bundles/minilm-l0-l1 --corpus builtin:english-1 --out en.stats",
    ),
)
@bundle_argument
@_fitting_options
@heading("Output")
@_out_option
@json_option
@quiet_option
@one_line_errors
def fit(
    bundle: str,
    corpus: tuple[str, ...],
    column: str | None,
    max_sentences: int | None,
    out: Path,
    as_json: bool,
) -> None:
    """Collect statistics of a corpus, for whiten refit.

    BUNDLE embeds the corpus. whiten merge puts the statistics of parts of a corpus together. For a large corpus, whiten
    fit-many works in shards, and resumes after an interruption.
    """
    if not corpus:
        raise UsageError(f"--corpus is missing; name a file of sentences, or {BUILTIN_CORPUS}")
    _check_file(out)
    with needing("refit"):
        from whiten_export.pipeline.refit import fit_statistics
    options = SessionOptions(providers_for())
    statistics = fit_statistics(
        locate_bundle(bundle), Corpus(corpus, column, max_sentences), out, options, ConsoleReporter()
    )
    _tell(out, statistics, as_json)


@command(
    section="Make a bundle",
    examples=(
        "whiten merge january.stats february.stats --out both.stats",
        "whiten merge parts/*.stats --out whole.stats --json",
    ),
)
@click.argument("stats", nargs=-1, required=True, type=click.Path(path_type=Path))
@heading("Output")
@_out_option
@json_option
@quiet_option
@one_line_errors
def merge(stats: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Merge statistics of whiten fit, in the order given.

    The result is as if all sentences had been fitted at once.
    """
    _check_file(out)
    merged, first = load_statistics(stats[0])
    for path in stats[1:]:
        statistics, origin = load_statistics(path)
        if difference := first.difference(origin):
            raise UsageError(f"{stats[0]} and {path} are of different models or layers ({difference})")
        merged = merged.merge(statistics)
    save_statistics(out, merged, first)
    _tell(out, merged, as_json)


@command(
    section="Make a bundle",
    examples=(
        "whiten refit bundles/minilm-l0-l1 --corpus mine.txt --out bundles/mine",
        "whiten refit bundles/minilm-l0-l1 --stats mine.stats --dim 256 -o bundles/b",
    ),
)
@bundle_argument
@_fitting_options
@option("--all-sentences", is_flag=True, help="Use all sentences of the corpus, even if fewer are enough.")
@option(
    "--stats", type=click.Path(path_type=Path), metavar="FILE", help="Statistics of whiten fit, instead of --corpus."
)
@heading("Whitening")
@option(
    "--whitening",
    type=click.Choice([*get_args(Method), "auto"]),
    metavar="METHOD",
    help=f"Method, such as pca or auto. One of {', '.join(get_args(Method))} and auto. auto chooses by measuring, and "
    "says why. The default is auto; pca with --beta or --shrinkage.",
)
@shared.dim_option
@shared.beta_option
@shared.shrinkage_option
@shared.dev_option
@option(
    "--align-to",
    type=click.Path(),
    metavar="OLD",
    help="Rotate the new whitening so that vectors stored with OLD stay usable. OLD is a bundle of the same model.",
)
@heading("Output")
@option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="NEW",
    help="The new bundle's directory.",
)
@option(
    "--round-to",
    type=click.Choice(get_args(VectorType)),
    metavar="TYPE",
    help="As whiten-export has it: float32 or int8. [default: BUNDLE's]",
)
@shared.force_option
@json_option
@quiet_option
@one_line_errors
def refit(
    bundle: str,
    corpus: tuple[str, ...],
    column: str | None,
    max_sentences: int | None,
    stats: Path | None,
    whitening: Method | Literal["auto"] | None,
    dim: int | None,
    beta: float,
    shrinkage: str,
    dev: str | None,
    out: Path,
    align_to: str | None,
    all_sentences: bool,
    round_to: VectorType | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write BUNDLE with another whitening to NEW.

    It is fitted on --corpus, or taken from --stats; PyTorch is not needed. BUNDLE may be of any precision, whitened
    or not. The new bundle is proven against the vectors that the reference gave at export.
    """
    if bool(corpus) == (stats is not None):
        raise UsageError("give either --corpus FILE or --stats FILE, to fit the new whitening on")
    if stats is not None and (column or max_sentences or all_sentences):
        raise UsageError("--column, --max-sentences and --all-sentences are for --corpus; leave them out")
    recipe = Recipe(
        bundle,
        whitening=whitening or "default",
        dim=dim,
        beta=beta,
        shrinkage=parse_shrinkage(shrinkage),
        corpus=corpus or None,
        column=column,
        max_sentences=max_sentences,
        all_sentences=all_sentences,
        dev=dev,
    )
    recipe = replace(recipe, whitening=whitening or recipe.usual_whitening)
    with needing("refit"):
        from whiten_export.pipeline.align import align_refit
        from whiten_export.pipeline.refit import fit_or_load_statistics, write_refit
        from whiten_export.writing.staging import check_place
    check_place(out, force)
    reporter = ConsoleReporter()
    options = SessionOptions(providers_for())
    path = locate_bundle(bundle)
    if align_to is not None:
        aligned_to, _ = align_refit(align_to, read_manifest(path), recipe.spec or WhiteningSpec(dimension=dim))
        if dev is not None:  # what is chosen has as many dimensions
            recipe = replace(recipe, dim=aligned_to.manifest.dimension)
    statistics, spec, choice = fit_or_load_statistics(path, recipe, stats, options, reporter)
    result = write_refit(
        bundle,
        statistics,
        spec,
        out,
        force,
        options,
        reporter,
        align_to=align_to,
        choice=choice,
        round_to=round_to,
    )
    shared.tell_written(result, reporter, as_json)


def _check_file(out: Path) -> None:
    if not out.parent.is_dir():
        raise UsageError(f"'{out.parent}' is not a directory; create it first")
    check_file_place(out, "another --out")


def _tell(out: Path, statistics: Statistics, as_json: bool) -> None:
    moments = statistics.moments
    measured = {
        "sentences": moments.n,
        "dimensions": len(moments.mean),
        "iso_score": iso_score(moments.covariance) if moments.n > 1 else None,
        "average_cosine": average_cosine(moments) if moments.n > 1 else None,
    }
    say(f"wrote {out}: {moments.n:,} sentences, {len(moments.mean)} dimensions")
    if as_json:
        console.print_json({"out": str(out), **measured, "corpus": statistics.corpus})
