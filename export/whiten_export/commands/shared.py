"""Define the options of a whitening that commands share, and say in five lines what bundle they wrote."""

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from whiten_export.recipe import SENTENCES_PER_DIMENSION
from whiten_runtime.bundle.manifest import Manifest, ParityRecord, WhiteningRecord
from whiten_runtime.bundle.parity import GATES, Gate
from whiten_runtime.commands import console
from whiten_runtime.commands.console import ConsoleReporter, WholeNumber, given_text, human_size, option
from whiten_runtime.errors import UsageError, parse_whole

if TYPE_CHECKING:
    from whiten_export.bundle_files import Export
    from whiten_export.plan import Plan

dim_option = option(
    "--dim",
    type=WholeNumber(min=1),
    metavar="K",
    help="Keep the K leading dimensions. Not for zca, zca-cor and cholesky. [default: all]",
)
WEAKER = "centre (only centres), partial (half the exponent of pca)"
"""Whitenings of `--whitening` that do less than the methods, for the help."""


def _parse_sentences(context: click.Context, parameter: click.Parameter, text: str | None) -> int | str | None:
    """Return a number as such, and "all" as it is; a recipe refuses what is neither."""
    number = None if text is None else parse_whole(text)
    return text if number is None else number


max_sentences_option = option(
    "--max-sentences",
    callback=_parse_sentences,
    metavar="N|all",
    help=f"Use N sentences, spread over the corpus, or all. [default: {SENTENCES_PER_DIMENSION} for each dimension]",
)
shrinkage_option = option(
    "--shrinkage",
    default="none",
    metavar="none|ledoit-wolf|oas|A",
    help="Shrink the covariance. A is a weight from 0 to 1. [default: chosen by auto; none with a method]",
)
prompt_option = option(
    "--prompt-name",
    metavar="NAME",
    callback=given_text,
    help="Prompt of the model that each sentence of the fit gets, such as query. [default: the model's default prompt, "
    "if any]",
)
dev_option = option(
    "--dev",
    metavar="PATH",
    help="Let --whitening auto choose by it. A folder of collections in BEIR's layout: by nDCG@10 of their search. "
    "A file of pairs, sentence1, sentence2 and score: by Spearman's correlation.",
)
force_option = option("--force", is_flag=True, help="Replace a bundle that is already there.")


def parse_numbers(name: str, text: str, example: str = "1,12") -> tuple[int, ...]:
    """Parse whole numbers such as the layers "1,12"."""
    numbers = [parse_whole(part.strip(" ")) for part in text.split(",")]
    whole = tuple(number for number in numbers if number is not None)
    if len(whole) < len(numbers):
        raise UsageError(f"{name} is '{text}'; wanted whole numbers separated by commas, such as {example}")
    return whole


_SCORES = 2
"""Number of isotropy scores that are told: IsoScore and the average cosine."""

_MOST_LAYERS = 8
"""Largest number of layers that are named one by one."""


def tell_written(result: "Export", reporter: ConsoleReporter, as_json: bool, seconds: float | None = None) -> None:
    """Say what was written, and print it as JSON if it was asked for."""
    console.say_written(summary(result.path, result.bytes, result.manifest, seconds))
    if as_json:
        timed = {} if seconds is None else {"seconds": round(seconds, 3)}
        written = {"bundle": str(result.path), "bytes": result.bytes, **timed}
        console.print_json({**written, "warnings": reporter.warnings, "manifest": result.manifest})


def summary(path: Path, size: int, manifest: Manifest, seconds: float | None = None) -> str:
    """Return the lines that follow "wrote ", each of at most 100 characters, except long paths."""
    parity, whitening, published = manifest.parity, manifest.whitening, manifest.published
    assert parity is not None
    took = "" if seconds is None else f", {seconds:.0f} s"
    lines = [f"{path}: {_vectors(manifest)} ({human_size(size)}{took})", f"  chosen   {_chosen(manifest)}"]
    if whitening is not None and (gain := _gained(whitening, manifest.input == "text")):
        lines.append(f"  gained   {gain}")
    lines.append(f"  proven   {_proven(parity, GATES[manifest.precision])}")
    if published is not None and whitening is None:
        near = f"{_program(published)} within {published.max_difference:.1e} of the norm"
        lines.append(f"           {_program(parity)} equals {near}")
    return "\n".join([*lines, f"  next     {_next(path, manifest)}"])


def tell_plan(plan: "Plan", reporter: ConsoleReporter, as_json: bool) -> None:
    """Print a plan of an export."""
    if as_json:
        console.print_json(structs.asdict(plan) | {"warnings": reporter.warnings})
        return
    manifest = plan.manifest
    source, modules = manifest.source, f", then {', '.join(manifest.modules)}" if manifest.modules else ""
    rows = [
        ("model", f"{source.model} ({source.checkpoint or 'local'}): {source.model_type}, {plan.weights:,} weights"),
        ("layers", f"{', '.join(map(str, manifest.layers))} of {source.num_hidden_layers}"),
        ("pooling", f"{manifest.pooling}{modules}"),
        ("whitening", f"{plan.whitening}, on {plan.sentences:,} sentences" if plan.whitening else "none"),
        ("vectors", f"{manifest.dimension} numbers{', divided by the norm' if manifest.normalize else ''}"),
        ("max length", f"{manifest.max_seq_length} tokens"),
        ("precision", manifest.precision + (", fused for CUDA" if manifest.target == "cuda" else "")),
        ("memory", f"about {_about(plan.memory_bytes)} at the peak, of {human_size(plan.usable_bytes)}"),
        ("disk", f"about {_about(plan.bundle_bytes)}, and {_about(plan.work_bytes)} more while it works"),
        ("time", f"very roughly {_duration(plan.seconds)} on two cores, without downloads"),
    ]
    console.echo(console.table(("plan", plan.bundle), rows))


def _about(count: int) -> str:
    """Format an estimate of bytes, with two digits at most."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(count / 1e6, 1):.0f} MB"


def _duration(seconds: int) -> str:
    if seconds < 90:
        return "a minute"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{round(seconds / 3600)} hours"


def _vectors(manifest: Manifest) -> str:
    numbers = f"{manifest.dimension} numbers"
    if manifest.input == "vectors":
        return f"{numbers} per vector"
    count, layers = manifest.source.num_hidden_layers, manifest.layers
    if len(layers) > _MOST_LAYERS:
        return f"{len(layers)} layers of {count}, {numbers} per text"
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))} of {count}, {numbers} per text"


def _chosen(manifest: Manifest) -> str:
    whitening, choice = manifest.whitening, manifest.choice
    kind = "not whitened" if whitening is None else whitening.description
    if choice is not None:
        return f"{kind}: {choice.why}"
    if manifest.published is None or whitening is not None:
        return kind
    return f"as published: {manifest.pooling} pooling, {'divided by the norm, ' if manifest.normalize else ''}{kind}"


def _gained(whitening: WhiteningRecord, of_texts: bool) -> str:
    measures = list(whitening.isotropy_scores.items())[:_SCORES]
    if not measures:
        return ""
    scores = ", ".join(f"{name} {_rounded(before)} -> {_rounded(after)}" for name, (before, after) in measures)
    available = sum(record.available or record.sentences for record in whitening.corpus)
    of = f" of {available:,}" if available > whitening.n_samples else ""
    return f"{scores}, on {whitening.n_samples:,}{of} {'sentences' if of_texts else 'vectors'}"


def _rounded(score: float) -> str:
    return f"{round(score, 2) + 0.0:.2f}"  # -0.00 would look like a fault


def _proven(parity: ParityRecord, gate: Gate) -> str:
    """Say how far vectors are from the reference's, and the bound: differences of float32, cosines of the rest."""
    program = _program(parity)
    if math.isfinite(gate.max_difference):
        near = f"equals {program} within {parity.max_difference:.1e} of the norm, {parity.vectors} vectors"
        return f"{near} (bound {gate.max_difference:g})"
    same = gate.min_cosine == gate.mean_cosine
    bound = f"bound {gate.min_cosine:g}" if same else f"bounds {gate.min_cosine:g} and {gate.mean_cosine:g}"
    digits = 6 if same else 4
    worst, mean = f"{parity.min_cosine:.{digits}f} at worst", f"{parity.mean_cosine:.{digits}f} on average"
    return f"cosine with {program} {worst}, {mean} ({bound})"


def _program(record: ParityRecord) -> str:
    return record.reference.split(",")[0]


def _next(path: Path, manifest: Manifest) -> str:
    bundle = shlex.quote(str(path))
    if manifest.input == "vectors":
        return f"whiten transform {bundle} --input FILE --out FILE   (Python: whiten.VectorWhitener)"
    return f'whiten embed {bundle} "Your text."   (Python: whiten.Encoder)'
