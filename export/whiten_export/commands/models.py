"""Implement `whiten models`: show the catalogue as a table, a part of it, or one entry. Needs no torch."""

import json
from dataclasses import asdict, replace
from typing import Any

import click

from whiten_models.catalogue import Entry, catalogue, find, near_matches
from whiten_runtime.commands import console
from whiten_runtime.commands.console import command, echo, option, table
from whiten_runtime.errors import WhitenError

HEADER = ("NAME", "CHECKPOINT", "LAYERS", "TOKENS", "LICENCE")
LEGEND = "whiten models NAME shows pooling and prompts. --all adds the papers' language models and word vectors."


@command(
    section="Make",
    examples=(
        "whiten models bge",
        "whiten models bge-small --json",
    ),
)
@click.argument("text", nargs=-1)
@option("--all", "every", is_flag=True, help="List the papers' language models and word vectors too.")
def models(text: tuple[str, ...], every: bool, as_json: bool) -> None:
    """List the models that whiten-export knows by name.

    They are the published embedding models; --all adds the others. TEXT is the name of one, to see how it is exported,
    or words to look for among all: every word must be found.
    """
    wanted = " ".join(text)
    exact = find(wanted)
    entries = (exact,) if exact else search(wanted)
    if not entries:
        raise WhitenError(_no_match(wanted))
    if not text and not every:
        entries = tuple(entry for entry in entries if entry.as_published)
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
    """Return how an entry is exported, a fact a line; `--json` has every field."""
    lengths = ", ".join(map(str, entry.dimensions))
    measured = ", chosen on similarity of short texts" if len(entry.recommended_layers) > 1 else ""
    facts = {
        "name": ", ".join((entry.name, *entry.aliases)),
        "checkpoint": entry.checkpoint,
        "licence": entry.licence,
        "layers": f"{_layers(entry)}{measured}",
        "pooling": entry.pooling if entry.recommended_layers else "",
        "default": "as published, unless layers or a whitening are named" if entry.as_published else "",
        "vectors": f"may be cut to {lengths} dimensions" if lengths else "",
        "longest text": f"{entry.max_length:,} tokens" if entry.max_length else "",
    }
    for name, prompt in entry.prompts.items():  # quoted, to show blanks and newlines at the ends
        facts[f"prompt {name}"] = json.dumps(prompt, ensure_ascii=False)
    if entry.default_prompt:
        facts["default prompt"] = entry.default_prompt
    width = max(map(len, facts))
    return "\n".join(f"{key:<{width}}  {value}" for key, value in facts.items() if value)


def _row(entry: Entry) -> tuple[str, ...]:
    return entry.name, entry.checkpoint, _layers(entry), f"{entry.max_length or ''}", entry.licence


def _layers(entry: Entry) -> str:
    return ",".join(map(str, entry.recommended_layers))


def _record(entry: Entry) -> dict[str, Any]:
    """Return an entry's fields; asdict cannot copy a read-only mapping."""
    return asdict(replace(entry, prompts=dict(entry.prompts)))


def _searched(entry: Entry) -> str:
    return "\n".join((entry.name, *entry.aliases, entry.checkpoint, entry.model_type or entry.source)).lower()


def _no_match(text: str) -> str:
    near = near_matches(text)
    hint = f"did you mean {' or '.join(near)}?" if near else "see whiten models --all for all of them."
    return f"no model in the catalogue matches '{text}'; {hint} whiten-export also takes any ORG/NAME of the hub"
