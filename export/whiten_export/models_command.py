"""`whiten models`: the catalogue as a table. Needs no torch."""

from dataclasses import asdict

import click

from whiten_models import catalogue
from whiten_runtime import console
from whiten_runtime.console import json_option, one_line_errors, table


@click.command()
@json_option
@one_line_errors
def models(as_json: bool) -> None:
    """List the models that whiten-export knows by name."""
    entries = catalogue()
    if as_json:
        console.print_json([asdict(entry) for entry in entries])
        return
    header = ("NAME", "CHECKPOINT", "LAYERS", "WIDTH", "DEFAULT", "LICENCE", "TOKENIZER")
    rows = [
        (
            entry.name,
            entry.checkpoint,
            str(entry.layers),
            str(entry.width),
            ",".join(map(str, entry.recommended_layers)),
            entry.licence,
            entry.tokenizer,
        )
        for entry in entries
    ]
    click.echo(table(header, rows))
