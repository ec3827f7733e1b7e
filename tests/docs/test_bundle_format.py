"""The table of whiten.json in docs/bundle-format.md names every field that the runtime reads, and no other."""

import re
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from whiten_runtime.bundle.files import HASH_FIELD
from whiten_runtime.bundle.manifest import Manifest, PoolingMode, Source

TEXT = (Path(__file__).parents[2] / "docs" / "bundle-format.md").read_text("utf-8")
CODE = re.compile(r"`([^`]+)`")
SECTION = TEXT.split("\n## whiten.json\n")[1].split("\n### ")[0].split("\n## ")[0]


def rows() -> dict[str, str]:
    """Return the meaning of each field in the table; a name that begins with a dot is of the first one's record."""
    found: dict[str, str] = {}
    for row in re.findall(r"^\| (`.*)$", SECTION, re.MULTILINE):
        first, _, meaning = row.partition(" | ")
        names = CODE.findall(first)
        record = names[0].rpartition(".")[0]
        found |= {f"{record}{name}" if name.startswith(".") else name: meaning for name in names}
    return found


def records(kind: Any) -> set[type[msgspec.Struct]]:
    """Return the records in a type, and those in their fields."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        inside = (records(hint) for hint in typing.get_type_hints(kind).values())
        return {kind}.union(*inside)
    return set().union(*map(records, typing.get_args(kind)))


def fields(kind: type[msgspec.Struct]) -> set[str]:
    return {field.name for field in msgspec.structs.fields(kind)}


def test_the_table_has_every_field() -> None:
    known = {HASH_FIELD} | (fields(Manifest) - {"source"}) | {f"source.{name}" for name in fields(Source)}
    assert set(rows()) == known


HINTS = {name: kind for name, kind in typing.get_type_hints(Manifest).items() if records(kind) and name != "source"}


@pytest.mark.parametrize("name", HINTS)
def test_the_meaning_of_a_field_names_what_is_in_its_record(name: str) -> None:
    meaning = rows()[name]
    if name == "published":
        assert "the same fields" in meaning  # those of parity, in the row above
        return
    named = set(CODE.findall(meaning))
    missing = {inside for record in records(HINTS[name]) for inside in fields(record)} - named
    assert missing == set()


def literals(kind: Any) -> set[str]:
    """Return the strings that a type allows, by itself or in the fields of its records."""
    if typing.get_origin(kind) is typing.Literal:
        return {value for value in typing.get_args(kind) if isinstance(value, str)}
    inside = [hint for record in records(kind) for hint in typing.get_type_hints(record).values()]
    return set().union(*map(literals, typing.get_args(kind)), *map(literals, inside))


VALUES = {name: literals(kind) for name, kind in typing.get_type_hints(Manifest).items()}
VALUES["pooling"] = set(typing.get_args(PoolingMode))


@pytest.mark.parametrize(
    "name", [name for name, values in VALUES.items() if values and name not in ("source", "choice")]
)
def test_the_meaning_of_a_field_names_its_values(name: str) -> None:
    named = {code.strip('"') for code in CODE.findall(rows()[name])}
    elsewhere = VALUES["precision"] if name == "whitening" else set()  # of its corpus: a row of its own
    assert VALUES[name] - elsewhere - named == set()
