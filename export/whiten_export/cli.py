"""`whiten-export`: one command from a pretrained language model to a bundle."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import click

from whiten_export.recipe import BUILTIN_CORPUS, Recipe, parse_layers
from whiten_export.reporter import Reporter
from whiten_runtime import console
from whiten_runtime.console import human_size, json_option, one_line_errors, say
from whiten_runtime.errors import WhitenError
from whiten_runtime.manifest import Manifest, Precision
from whiten_runtime.parity import GATES, in_words


class ConsoleReporter(Reporter):
    """Reports to stderr, with progress bars on a terminal; keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def stage(self, text: str) -> None:
        """Print a line for the stage."""
        say(click.style("· ", fg="cyan") + text)

    def warn(self, text: str) -> None:
        """Print and keep the warning."""
        self.warnings.append(text)
        console.warn(text)

    @contextmanager
    def bar(self, unit: str, total: int | None) -> Iterator[Callable[[int], object]]:
        """Draw a bar that vanishes when it is done."""
        from tqdm import tqdm

        with tqdm(total=total, unit=f" {unit}", leave=False, disable=not sys.stderr.isatty()) as bar:
            yield bar.update


@click.command("whiten-export", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.option(
    "--layers",
    metavar="L,L",
    help="Layers to average, 0 = embeddings, negative from the top. [default: the catalogue's, else 1 and the last]",
)
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls"]),
    default="mean",
    show_default=True,
    help="Over all real tokens, or the first.",
)
@click.option(
    "--whitening",
    type=click.Choice(["pca", "none"]),
    default="pca",
    show_default=True,
    help="Whitening at the end of the graph.",
)
@click.option("--dim", type=int, metavar="K", help="Keep the K leading whitened dimensions. [default: all]")
@click.option(
    "--corpus",
    multiple=True,
    metavar="FILE",
    help="Sentences to fit on, best like yours: .txt, .jsonl, .csv, .tsv, .parquet (.gz). Repeatable. "
    f"[default: {BUILTIN_CORPUS}]",
)
@click.option("--column", help="Column or key of the sentence in --corpus.")
@click.option("--max-sentences", type=int, metavar="N", help="Use the first N sentences of the corpus.")
@click.option("--normalize/--no-normalize", default=False, show_default=True, help="L2-normalise inside the graph.")
@click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    default="fp32",
    show_default=True,
    help="int8: a quarter of the size, about twice as fast on CPU. fp16: half the size.",
)
@click.option("--max-length", type=int, metavar="N", help="Tokens a text may have. [default: the checkpoint's]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The bundle's directory. [default: bundles/NAME-l1-l6 and the like]",
)
@click.option("--force", is_flag=True, help="Replace a bundle that is already there.")
@click.option("--revision", help="Branch, tag or commit on the hub.")
@click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the checkpoint.")
@click.option("--device", default="cpu", show_default=True, help="Where to compute: cpu, cuda or cuda:N.")
@json_option
@one_line_errors
@click.version_option(package_name="whiten")
def export(
    model: str,
    layers: str | None,
    pooling: str,
    whitening: str,
    dim: int | None,
    corpus: tuple[str, ...],
    column: str | None,
    max_sentences: int | None,
    normalize: bool,
    precision: Precision,
    max_length: int | None,
    out: Path | None,
    force: bool,
    revision: str | None,
    trust_remote_code: bool,
    device: str,
    as_json: bool,
) -> None:
    """Export MODEL to a bundle: an ONNX graph from token ids to whitened sentence vectors, with tokenizer and proof.

    MODEL is a name of the catalogue (see `whiten models`), a directory written by save_pretrained, or a hub id.
    """
    started = time.monotonic()
    recipe = Recipe(
        model=model,
        layers=None if layers is None else parse_layers(layers),
        pooling="cls" if pooling == "cls" else "mean",
        whitening=None if whitening == "none" else "pca",
        dim=dim,
        corpus=corpus or None,
        column=column,
        max_sentences=max_sentences,
        normalize=normalize,
        precision=precision,
        max_length=max_length,
        revision=revision,
        trust_remote_code=trust_remote_code,
        device=device,
    )
    reporter = ConsoleReporter()
    try:
        from whiten_export.pipeline import export_bundle
    except ImportError as error:
        raise WhitenError(f"exporting needs {error.name}; install it with pip install 'whiten[export]'") from error
    result = export_bundle(recipe, out, force, reporter)
    seconds = time.monotonic() - started
    say(_summary(result.path, result.bytes, result.manifest, seconds))
    if as_json:
        console.print_json(
            {
                "bundle": str(result.path),
                "bytes": result.bytes,
                "seconds": round(seconds, 3),
                "warnings": reporter.warnings,
                "manifest": result.manifest,
            }
        )


def _summary(path: Path, size: int, manifest: Manifest, seconds: float) -> str:
    parity, gate = manifest.parity, GATES[manifest.precision]
    assert parity is not None
    whitening = manifest.whitening
    fitted = f", whitened on {whitening.n_samples:,} sentences" if whitening else ""
    return "\n".join(
        (
            f"{click.style('wrote', fg='green', bold=True)} {path} ({human_size(size)}, {seconds:.0f} s)",
            f"  vectors  {manifest.dimension} dimensions from layers {', '.join(map(str, manifest.layers))}{fitted}",
            f"  parity   {in_words(parity)} (gate: {gate})",
            f'  use it   whiten embed {path} "Your text."   or   whiten_runtime.Encoder("{path}").encode(texts)',
        )
    )


def main() -> None:
    """Entry point of `whiten-export`."""
    console.run(export)
