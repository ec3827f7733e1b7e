"""Implement `whiten fit`, `whiten merge`, `whiten refit`: give a bundle another whitening, where it runs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, reduce
from pathlib import Path
from typing import Any, Literal, get_args

import click

from whiten_export.corpus.statistics import Origin, Statistics, load_finished, save_statistics
from whiten_export.pipeline.recipe import WhiteningChoice
from whiten_runtime.bundle.manifest import ChoiceRecord, Manifest, VectorType, read_manifest
from whiten_runtime.bundle.parity import gate_of, in_words
from whiten_runtime.checks import needing
from whiten_runtime.commands import console
from whiten_runtime.commands.console import (
    bundle_argument,
    human_size,
    json_option,
    one_line_errors,
    provider_option,
    say,
    threads_option,
)
from whiten_runtime.commands.console_reporter import ConsoleReporter
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.files.places import check_file_place, check_folder_place
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.ort.providers import CPU_PROVIDER, Provider
from whiten_runtime.ort.session import SessionOptions
from whiten_whitening.isotropy import average_cosine, iso_score
from whiten_whitening.maps import Method
from whiten_whitening.moments import Moments
from whiten_whitening.selection import Choice, choose_by_rules, soft_weight
from whiten_whitening.shrinkage import parse_shrinkage

_out_option = click.option("-o", "--out", required=True, type=click.Path(path_type=Path), metavar="FILE")


def _fitting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that fit and refit share."""
    options = (
        click.option(
            "--corpus",
            multiple=True,
            metavar="FILE",
            help="Sentences to fit on: .txt, .jsonl, .csv, .tsv, .parquet (.gz). Repeatable. "
            f"{BUILTIN_CORPUS} for the built-in English ones.",
        ),
        click.option("--column", help="Column or key of the sentence in --corpus."),
        click.option(
            "--max-sentences", type=click.IntRange(min=1), metavar="N", help="Use N sentences, spread over the corpus."
        ),
        threads_option,
        provider_option,
    )
    return reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


@click.command()
@bundle_argument
@_fitting_options
@_out_option
@click.option("--restart", is_flag=True, help="Begin anew, whatever an interrupted fit left.")
@json_option
@one_line_errors
def fit(
    bundle: str,
    corpus: tuple[str, ...],
    column: str | None,
    max_sentences: int | None,
    threads: int | None,
    providers: tuple[Provider, ...],
    out: Path,
    restart: bool,
    as_json: bool,
) -> None:
    """Embed a corpus with BUNDLE and write its statistics, from which `whiten refit` makes a whitening.

    While it runs, its state is kept in FILE.partial; run it again after an interruption, and it goes on from there.
    Statistics of parts of a corpus are put together by `whiten merge`.
    """
    if not corpus:
        raise UsageError(f"--corpus is missing; name a file of sentences, or {BUILTIN_CORPUS}")
    _check_file(out)
    with needing("refit"):
        from whiten_export.pipeline.fit import fit_bundle
    options = SessionOptions(providers or (CPU_PROVIDER,), threads)
    found = fit_bundle(
        locate_bundle(bundle), Corpus(corpus, column, max_sentences), out, options, restart, ConsoleReporter()
    )
    _tell(out, found, as_json)


@click.command()
@click.argument("stats", nargs=-1, required=True, type=click.Path(path_type=Path))
@_out_option
@json_option
@one_line_errors
def merge(stats: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Put statistics of `whiten fit` together, in the order given: as if all sentences had been fitted at once."""
    _check_file(out)
    merged: Statistics | None = None
    first: Origin | None = None
    for path in stats:
        statistics, origin = load_finished(path)
        if merged is None or first is None:
            merged, first = statistics, origin
            continue
        if difference := first.difference(origin):
            raise UsageError(f"{stats[0]} and {path} are of different models or layers ({difference})")
        merged = merged.merge(statistics)
    assert merged is not None
    assert first is not None
    save_statistics(out, merged, first)
    _tell(out, merged, as_json)


@click.command()
@bundle_argument
@_fitting_options
@click.option("--stats", type=click.Path(path_type=Path), metavar="FILE", help="Instead of --corpus: of whiten fit.")
@click.option(
    "--whitening",
    type=click.Choice([*get_args(Method), "auto"]),
    help="auto: decided by what can be measured, with the reason. [default: auto; pca with --beta or --shrinkage]",
)
@click.option("--dim", type=int, metavar="K", help="Keep the K leading dimensions (pca, pca-cor, auto). [default: all]")
@click.option("--beta", type=float, default=1.0, show_default=True, help="Exponent: 1 whitens, 0 only centres.")
@click.option("--shrinkage", default="none", show_default=True, metavar="none|ledoit-wolf|oas|A")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="NEW", help="The new bundle's directory."
)
@click.option(
    "--align-to",
    type=click.Path(),
    metavar="OLD",
    help="Bundle of the same model whose stored vectors are to stay usable: the new map is turned onto its map.",
)
@click.option(
    "--all-sentences", is_flag=True, help="Use all sentences of the corpus, even if more would not move the map."
)
@click.option(
    "--vectors",
    type=click.Choice(get_args(VectorType)),
    help="int8: whole numbers from -127 to 127, one scale a vector. [default: as BUNDLE]",
)
@click.option("--force", is_flag=True, help="Replace a bundle that is already there.")
@json_option
@one_line_errors
def refit(
    bundle: str,
    corpus: tuple[str, ...],
    column: str | None,
    max_sentences: int | None,
    threads: int | None,
    providers: tuple[Provider, ...],
    stats: Path | None,
    whitening: Method | Literal["auto"] | None,
    dim: int | None,
    beta: float,
    shrinkage: str,
    out: Path,
    align_to: str | None,
    all_sentences: bool,
    vectors: VectorType | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write BUNDLE with another whitening, fitted on --corpus or taken from --stats, to NEW. Needs no PyTorch.

    BUNDLE may be of any precision, whitened or not. The new bundle is proven against the vectors that the reference
    gave at export.
    """
    if bool(corpus) == (stats is not None):
        raise UsageError("give either --corpus FILE or --stats FILE, to fit the new whitening on")
    if stats is not None and (column or max_sentences or all_sentences):
        raise UsageError("--column, --max-sentences and --all-sentences are for --corpus; leave them out")
    if max_sentences and all_sentences:
        raise UsageError(f"--max-sentences {max_sentences} and --all-sentences exclude each other; leave one out")
    asked = WhiteningChoice(whitening or "default", dim, beta, parse_shrinkage(shrinkage))
    asked = replace(asked, method=whitening or asked.usual)
    with needing("refit"):
        from whiten_export.pipeline.align import check_alignable
        from whiten_export.pipeline.fit import embed_kinds, fit_bundle, load_for
        from whiten_export.pipeline.refit import refit_bundle
        from whiten_export.writing.staging import check_target
    check_target(out, force)
    check_folder_place(out, "another --out")
    reporter = ConsoleReporter()
    options = SessionOptions(providers or (CPU_PROVIDER,), threads)
    path = locate_bundle(bundle)
    manifest = read_manifest(path)
    if align_to is not None:
        check_alignable(align_to, manifest, asked.spec, dim)

    @cache
    def kinds() -> Mapping[str, Moments] | None:
        return embed_kinds(path, options) if corpus and BUILTIN_CORPUS not in corpus else None

    def choose(moments: Moments) -> Choice:
        tuned, weight = is_tuned(manifest), soft_weight(moments, kinds())
        elsewhere = manifest.source.sentence_similarity and not tuned
        return choose_by_rules(moments, dim, asked.shrinkage, tuned, weight, elsewhere)

    if stats is not None:
        found = load_for(stats, manifest, reporter)
    else:
        spec_of = None if all_sentences else lambda moments: asked.spec or choose(moments).spec
        texts = Corpus(corpus, column, max_sentences)
        found = fit_bundle(path, texts, None, options, False, reporter, spec_of=spec_of)
    spec, record = asked.spec, None
    if spec is None:
        choice = choose(found.moments)
        reporter.stage(choice.why)
        spec, record = choice.spec, ChoiceRecord(why=choice.why)
    assert spec is not None  # the rules always give a map
    result = refit_bundle(bundle, found, spec, out, force, options, reporter, align_to, record, kinds(), vectors)
    console.say_written(_summary(result.path, result.bytes, result.manifest))
    if as_json:
        console.print_json(
            {
                "bundle": str(result.path),
                "bytes": result.bytes,
                "warnings": reporter.warnings,
                "manifest": result.manifest,
            }
        )


def is_tuned(manifest: Manifest) -> bool:
    """Return whether a bundle's vectors come from a top layer that was fine-tuned for sentence similarity."""
    source = manifest.source
    return source.sentence_similarity and manifest.layers[-1:] == (source.num_hidden_layers,)


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


def _summary(path: Path, size: int, manifest: Manifest) -> str:
    parity, whitening = manifest.parity, manifest.whitening
    assert parity is not None
    assert whitening is not None
    verb = "whitened" if whitening.beta else "centred"
    return "\n".join(
        (
            f"{path} ({human_size(size)})",
            f"  vectors  {manifest.dimension} dimensions, {verb} on {whitening.n_samples:,} sentences",
            f"  parity   {in_words(parity)} (gate: {gate_of(manifest.precision, manifest.vectors)})",
        )
    )
