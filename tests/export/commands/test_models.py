"""Test `whiten models` as people and scripts call it."""

import json
from dataclasses import fields
from functools import partial

import pytest

from support.cli import invoke, refused
from whiten_export.commands.models import details, models
from whiten_models.catalogue import Entry, catalogue

run = partial(invoke, models)


def names_in_json(*arguments: str) -> list[str]:
    return [row["name"] for row in json.loads(run(*arguments, "--json").stdout)]


def listed(*arguments: str) -> list[str]:
    header, *lines = run(*arguments).stdout.splitlines()
    assert header.split() == ["NAME", "CHECKPOINT", "LAYERS", "TOKENS", "LICENCE"]
    assert max(map(len, lines)) <= 132
    return [line.split()[0] for line in lines]


def test_the_list_begins_with_published_models_and_all_adds_the_others() -> None:
    published = listed()
    assert published[:3] == ["minilm", "all-mpnet", "multilingual-minilm"]
    assert published == [entry.name for entry in catalogue() if entry.as_published] == names_in_json()
    assert listed("--all") == [entry.name for entry in catalogue()]
    assert set(listed("--all")) - set(published) >= {"bert-base", "roberta-base", "glove"}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["ALBERT"], ["albert-base", "albert-large"]),
        (["intfloat", "xlm", "LARGE"], ["multilingual-e5-large", "multilingual-e5-large-instruct"]),
        (["BAAI"], ["bge-small", "bge-base", "bge-large", "bge-m3"]),
        (["static"], ["potion", "static-retrieval", "static-multilingual"]),
    ],
)
def test_search_finds_entries_by_words(words: list[str], names: list[str]) -> None:
    assert names_in_json(*words) == names
    assert all(name in run(*words).stdout for name in names)


@pytest.mark.parametrize(
    ("arguments", "named"), [(["qqqqqqqq"], "qqqqqqqq"), (["bqe", "--json"], "bge-small or bge-base or bge-large")]
)
def test_no_match_is_one_line(arguments: list[str], named: str) -> None:
    assert named in refused("models", *arguments, code=1)


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_details_of_every_entry_have_no_empty_fact(entry: Entry) -> None:
    lines = details(entry).splitlines()
    assert lines[0].split()[:2] == ["name", f"{entry.name}{',' * bool(entry.aliases)}"]
    assert all(line.strip() and "None" not in line for line in lines)


def test_json_has_every_field() -> None:
    row = json.loads(run("qwen3-embedding-0.6b", "--json").stdout)[0]
    assert row["prompts"]["query"].endswith("\nQuery:")
    assert (row["as_published"], row["normalize"]) == (True, True)
    row = json.loads(run("spanbert-large", "--json").stdout)[0]
    assert set(row) == {field.name for field in fields(Entry)}
    assert row["lowercase"] is False
    assert (row["source"], row["pooling"], row["adapter_of"], row["file"]) == ("transformers", "mean", None, None)
