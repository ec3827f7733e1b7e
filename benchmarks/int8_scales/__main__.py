"""Export one network of each family in int8, and print its scales and its cosines to float32 on unusual texts.

The networks are those of `benchmarks.families`: random, 4 blocks, 128 wide; all-MiniLM is the real one.
"""

import json
import tempfile
from pathlib import Path

import click
from click.testing import CliRunner

from benchmarks.families.hub_cache import prepare
from benchmarks.families.measure import command
from benchmarks.machine import machine
from support.corpus import sentences
from whiten_export.commands.export import export
from whiten_models.catalogue import Entry, catalogue

_HEAD = ("family", "network", "constant scales", "scales per token", "1 - worst cosine", "per token only", "1 - mean")


def row(entry: Entry, folder: Path) -> tuple[object, ...]:
    """Return the cells of an entry."""
    corpus, out = folder / "corpus.txt", folder / "bundle"
    corpus.write_text("\n".join(sentences(800)), "utf-8")
    prepare(entry)
    result = CliRunner().invoke(export, command(entry, "int8", corpus, out))
    name = (entry.model_type or entry.source, entry.name)
    if result.exit_code:
        return (*name, result.stderr.strip().splitlines()[-1])
    scales = json.loads((out / "whiten.json").read_text())["quantization"]
    losses = (f"{1 - scales[key]:.4f}" for key in ("far_min_cosine", "token_min_cosine", "far_mean_cosine"))
    return (*name, scales["constant_scales"], scales["token_scales"], *losses)


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Measure the first entry of each family, or the entries with these NAMES."""
    first: dict[str, Entry] = {}
    for entry in catalogue():
        if entry.source == "transformers" and not entry.modules:
            first.setdefault(entry.name if names else entry.model_type or entry.name, entry)
    click.echo(f"Made by `python -m benchmarks.int8_scales`, one run, {machine()}.\n")
    click.echo(f"| {' | '.join(_HEAD)} |\n|{'---|' * len(_HEAD)}")
    for entry in first.values():
        if not names or entry.name in names:
            with tempfile.TemporaryDirectory() as folder:
                click.echo(f"| {' | '.join(map(str, row(entry, Path(folder))))} |")


if __name__ == "__main__":
    main()
