"""Implement `whiten refit`: give a bundle another whitening, where it runs."""

from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import click

from whiten_export.commands import shared
from whiten_export.recipe import WHITENINGS, Recipe, Whitening
from whiten_runtime.commands.console import ConsoleReporter, bundle_argument, command, heading, option
from whiten_runtime.errors import UsageError, needing
from whiten_runtime.files.corpus import BUILTIN_CORPUS
from whiten_runtime.ort.session import SessionOptions, providers_for
from whiten_whitening.maps import Method, parse_shrinkage


@command(
    section="Make",
    examples=(
        "whiten refit bundles/minilm --corpus a.txt --whitening centre -o bundles/b",
        "whiten refit bundles/bert-base-l1-l12 --stats my.stats --dim 256 -o bundles/c",
    ),
)
@bundle_argument
@heading("Corpus")
@option(
    "--corpus",
    multiple=True,
    metavar="FILE",
    help="Sentences to fit on. Files of .txt, .jsonl, .csv, .tsv, .parquet (.gz), or "
    f"{BUILTIN_CORPUS} for the built-in English ones. Repeatable.",
)
@option("--column", metavar="COLUMN", help="Column or key of the sentence in --corpus.")
@shared.prompt_option
@shared.max_sentences_option
@option(
    "--stats",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Statistics of whiten fit, instead of --corpus. Repeatable: those of several files are merged, in order.",
)
@heading("Whitening")
@option(
    "--whitening",
    type=click.Choice([*WHITENINGS, "auto"]),
    metavar="METHOD",
    help=f"Method: {', '.join(get_args(Method))}, {shared.WEAKER} or auto. auto chooses by measuring, and says why. "
    "The default is auto; pca with --shrinkage.",
)
@shared.dim_option
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
@shared.force_option
def refit(
    bundle: str,
    corpus: tuple[str, ...],
    column: str | None,
    prompt_name: str | None,
    max_sentences: int | Literal["all"] | None,
    stats: tuple[Path, ...],
    whitening: Whitening | Literal["auto"] | None,
    dim: int | None,
    shrinkage: str,
    dev: str | None,
    out: Path,
    align_to: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write BUNDLE with another whitening to NEW.

    It is fitted on --corpus, or taken from --stats; PyTorch is not needed. BUNDLE may be of any precision, whitened
    or not. The new bundle is proven against the vectors that the reference gave at export.
    """
    if bool(corpus) == bool(stats):
        raise UsageError("give either --corpus FILE or --stats FILE, to fit the new whitening on")
    if stats and (column or prompt_name is not None or max_sentences):
        raise UsageError("--column, --prompt-name and --max-sentences are for --corpus; leave them out")
    recipe = Recipe(
        bundle,
        whitening=whitening or "default",
        dim=dim,
        shrinkage=parse_shrinkage(shrinkage),
        corpus=corpus or None,
        column=column,
        prompt_name=prompt_name,
        max_sentences=max_sentences,
        dev=dev,
        align_to=align_to,
    )
    recipe = replace(recipe, whitening=whitening or recipe.usual_whitening)
    with needing("refit"):
        from whiten_export.refit import refit as write_refit
    reporter = ConsoleReporter()
    result = write_refit(bundle, recipe, stats, out, force, SessionOptions(providers_for()), reporter)
    shared.tell_written(result, reporter, as_json)
