"""Implement `whiten models`: show the catalogue as a table, a part of it, or one entry. Needs no torch."""

import textwrap
from dataclasses import asdict

import click

from whiten_models.catalogue import Entry, TokenizerFacts, catalogue, find, near_matches
from whiten_runtime.commands import console
from whiten_runtime.commands.console import json_option, one_line_errors, table
from whiten_runtime.errors import WhitenError

HEADER = ("NAME", "CHECKPOINT", "FAMILY", "SHAPE", "DEFAULT", "TOKENIZER", "STS", "WHITE", "LICENCE")
LEGEND = "STS: the papers' average over seven tasks, layers 1 and last; WHITE: whitened. whiten models NAME shows more."


@click.command()
@click.argument("text", nargs=-1)
@json_option
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
        console.print_json([asdict(entry) for entry in entries])
    elif exact:
        click.echo(details(exact))
    else:
        click.echo(table(HEADER, [_row(entry) for entry in entries]))
        console.say(LEGEND)


def search(text: str) -> tuple[Entry, ...]:
    """Return the entries that contain every word of `text`, regardless of case; all entries for no words."""
    words = text.lower().split()
    return tuple(entry for entry in catalogue() if all(word in _searched(entry) for word in words))


def details(entry: Entry) -> str:
    """Return the known facts about one entry, one per line."""
    published = entry.published
    facts = {
        "name": entry.name,
        "aliases": ", ".join(entry.aliases),
        "in the papers": entry.paper_name,
        "checkpoint": entry.checkpoint,
        "revision": entry.revision,
        "SHA-256": entry.weights_sha256,
        "adapter of": entry.adapter_of,
        "file": entry.file,
        "package": entry.package and entry.package.distribution,
        "source": entry.source,
        "family": entry.model_type,
        "layers": str(entry.layers or ""),
        "width": str(entry.width),
        "default layers": ",".join(map(str, entry.recommended_layers)),
        "default pooling": entry.pooling if entry.recommended_layers else "",
        "tokenizer": _tokenizer(entry.tokenizer),
        "specials": _specials(entry.tokenizer),
        "pad token": entry.tokenizer.pad,
        "token types": "yes" if entry.token_types else "no",
        "fine-tuned": "for sentence similarity" if entry.sentence_similarity else "",
        "published STS": published and f"{published.raw:.2f}, whitened {published.whitened:.2f}",
        "licence": entry.licence,
        "see also": ", ".join(other.name for other in search(entry.name) if other is not entry),
    }
    width = max(map(len, facts))
    lines = [f"{key:<{width}}  {value}" for key, value in facts.items() if value]
    return "\n".join([*lines, *_paragraph(entry.note, width)])


def _row(entry: Entry) -> tuple[str, ...]:
    return (
        entry.name,
        entry.checkpoint,
        entry.model_type or entry.source,
        f"{entry.layers}/{entry.width}",
        f"{','.join(map(str, entry.recommended_layers))} {entry.pooling}" if entry.recommended_layers else "",
        entry.tokenizer.kind,
        f"{entry.published.raw:.2f}" if entry.published else "",
        f"{entry.published.whitened:.2f}" if entry.published else "",
        entry.licence,
    )


def _searched(entry: Entry) -> str:
    parts = (entry.name, *entry.aliases, entry.paper_name, entry.checkpoint, entry.model_type, entry.tokenizer.kind)
    return "\n".join((*parts, entry.note)).lower()


def _tokenizer(facts: TokenizerFacts) -> str:
    casing = {True: "lower-cases", False: "cased", None: ""}[facts.lowercase]
    override = "" if facts.lowercase_override is None else "set by the catalogue"
    size = f"{facts.vocabulary} tokens" if facts.vocabulary else ""
    return ", ".join(filter(None, (facts.kind, casing, override, size)))


def _specials(facts: TokenizerFacts) -> str:
    before, after = facts.specials
    return " ".join((*before, "text", *after)) if before or after else ""


def _paragraph(text: str, indent: int) -> list[str]:
    margin = " " * (indent + 2)
    first = f"{'note':<{indent}}  "
    return textwrap.wrap(text, 100, initial_indent=first, subsequent_indent=margin, break_on_hyphens=False)


def _no_match(text: str) -> str:
    near = near_matches(text)
    hint = f"did you mean {' or '.join(near)}?" if near else "see whiten models for all of them"
    return f"no model in the catalogue matches '{text}'; {hint}"
