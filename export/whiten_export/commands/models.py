"""Implement `whiten models`: show the catalogue as a table, a part of it, or one entry. Needs no torch."""

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import click

from whiten_models.catalogue import Entry, catalogue, find, near_matches
from whiten_runtime.commands import console
from whiten_runtime.commands.console import echo, json_option, one_line_errors, quiet_option, table
from whiten_runtime.commands.help import command, heading
from whiten_runtime.errors import WhitenError

HEADER = ("NAME", "CHECKPOINT", "FAMILY", "DEFAULT", "LICENCE")
LEGEND = "DEFAULT: layers and pooling; *: as its authors publish it. whiten models NAME shows more."
WIDTH = 100
"""Columns of wrapped text; a prompt is never wrapped."""


@command(
    section="Make a bundle",
    examples=(
        "whiten models bge",
        "whiten models bge-small --json",
    ),
)
@click.argument("text", nargs=-1)
@heading("Output")
@json_option
@quiet_option
@one_line_errors
def models(text: tuple[str, ...], as_json: bool) -> None:
    """List the models that whiten-export knows by name.

    TEXT is the name of one, to see all that is known about it, or words to look for: every word must be found.
    """
    wanted = " ".join(text)
    exact = find(wanted)
    entries = (exact,) if exact else search(wanted)
    if not entries:
        raise WhitenError(_no_match(wanted))
    if as_json:
        console.print_json([_record(entry) for entry in entries])
    elif exact:
        echo(details(exact))
    else:
        echo(table(HEADER, [_row(entry) for entry in entries]))
        console.say(LEGEND)


def search(text: str) -> tuple[Entry, ...]:
    """Return the entries that contain every word of `text`, regardless of case; all entries for no words."""
    words = text.lower().split()
    return tuple(entry for entry in catalogue() if all(word in _searched(entry) for word in words))


def details(entry: Entry) -> str:
    """Return the known facts about one entry, one per line where they fit."""
    facts = {
        "name": entry.name,
        "aliases": ", ".join(entry.aliases),
        "checkpoint": entry.checkpoint,
        "revision": entry.revision,
        "SHA-256": entry.weights_sha256,
        "adapter of": entry.adapter_of,
        "file": entry.file,
        "package": entry.package.distribution if entry.package else "",
        "source": entry.source,
        "family": entry.model_type,
        "default layers": _layers(entry),
        "default pooling": entry.pooling if entry.recommended_layers else "",
        "as published": "yes, unless layers or a whitening are named" if entry.as_published else "",
        "unit length": "yes" if entry.normalize else "",
        "dimensions": ", ".join(map(str, entry.dimensions)),
        "longest text": f"{entry.max_length} tokens" if entry.max_length else "",
        "default prompt": entry.default_prompt,
        "remote code": "needs --trust-remote-code" if entry.remote_code else "",
        "casing": "" if entry.lowercase is None else "lower-cases" if entry.lowercase else "cased",
        "fine-tuned": "for sentence similarity" if entry.sentence_similarity else "",
        "licence": entry.licence,
        "see also": ", ".join(other.name for other in search(entry.name) if other is not entry),
    }
    width = max(map(len, facts))
    lines = [line for key, value in facts.items() if value for line in _wrapped(key, value, width)]
    return "\n".join([*lines, *_prompts(entry, width)])


def _row(entry: Entry) -> tuple[str, ...]:
    return (
        entry.name,
        entry.checkpoint,
        entry.model_type or entry.source,
        _default(entry),
        entry.licence,
    )


def _layers(entry: Entry) -> str:
    layers = ",".join(map(str, entry.recommended_layers))
    return f"{layers}, chosen on similarity of short texts" if len(entry.recommended_layers) > 1 else layers


def _default(entry: Entry) -> str:
    layers = ",".join(map(str, entry.recommended_layers))
    return f"{layers} {entry.pooling}{' *' if entry.as_published else ''}" if layers else ""


def _record(entry: Entry) -> dict[str, Any]:
    """Return an entry's fields; asdict cannot copy a read-only mapping."""
    return asdict(replace(entry, prompts=dict(entry.prompts)))


def _searched(entry: Entry) -> str:
    return "\n".join((entry.name, *entry.aliases, entry.checkpoint, entry.model_type or entry.source)).lower()


def _prompts(entry: Entry, indent: int) -> Iterator[str]:
    """Yield the prompts, quoted to show their blanks and newlines, each below its name where a line is too short."""
    key = "prompts"
    for name, prompt in entry.prompts.items():
        text = json.dumps(prompt, ensure_ascii=False)
        line = f"{key:<{indent}}  {name}: {text}"
        yield from [line] if len(line) <= WIDTH else [f"{key:<{indent}}  {name}:", f"{'':<{indent}}    {text}"]
        key = ""


def _wrapped(key: str, text: str, indent: int) -> list[str]:
    first, margin = f"{key:<{indent}}  ", " " * (indent + 2)
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=margin, break_on_hyphens=False)


def _no_match(text: str) -> str:
    near = near_matches(text)
    hint = f"did you mean {' or '.join(near)}?" if near else "see whiten models for all of them."
    return f"no model in the catalogue matches '{text}'; {hint} whiten-export also takes any ORG/NAME of the hub"
