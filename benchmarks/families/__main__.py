"""Export every entry of the catalogue in each precision, and compare it with PyTorch.

The weights are random and the networks small (4 blocks, 128 wide), laid out as the hub's repositories are, in a hub
cache of their own; all-MiniLM is the real one. A network is traced once, for all precisions and for all names that have
the same one here. Run once with each version of transformers, then make the table:

    python -m benchmarks.families --out families-5.json
    python -m benchmarks.families --table families-5.json --table families-4.json > benchmarks/families/table.md
"""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
import transformers

from benchmarks.families.measure import measure, remember_traces
from benchmarks.families.report import table
from benchmarks.machine import machine
from whiten_models.catalogue import catalogue


@click.command()
@click.argument("names", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path), help="Write the results as JSON.")
@click.option("--table", "tables", multiple=True, type=click.Path(path_type=Path), help="Results to put side by side.")
def main(names: tuple[str, ...], out: Path | None, tables: tuple[Path, ...]) -> None:
    """Measure all entries, or those with these NAMES."""
    if tables:
        click.echo(table([json.loads(path.read_text()) for path in (*tables, *map(Path, names))]))
        return
    remember_traces()
    rows = []
    for entry in catalogue():
        if entry.modules or entry.source == "static":
            continue  # benchmarks.published compares those with sentence-transformers
        if not names or entry.name in names:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(entry, Path(folder)))
            click.echo(str(rows[-1]), err=True)
    result = {
        "transformers": transformers.__version__,
        "machine": machine(),
        "rows": [asdict(row) for row in rows],
    }
    if out is not None:
        out.write_text(json.dumps(result, indent=1))
    click.echo(table([result]))


if __name__ == "__main__":
    main()
