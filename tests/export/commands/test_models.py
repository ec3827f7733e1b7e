"""Test `whiten models` as people and scripts call it."""

import json
import re
from dataclasses import fields
from functools import partial

import pytest

from support.cli import invoke, refused
from whiten_export.commands.models import details, models
from whiten_models.catalogue import Entry, catalogue

run = partial(invoke, models)

LARGE_E5 = ["multilingual-e5-large", "multilingual-e5-large-instruct"]


def names_in_json(*arguments: str) -> list[str]:
    return [row["name"] for row in json.loads(run(*arguments, "--json").stdout)]


def test_the_table_has_every_entry_marks_what_is_exported_as_published_and_fits_a_wide_terminal() -> None:
    result = run()
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", *(entry.name for entry in catalogue())]
    assert max(map(len, lines)) <= 162
    bert = next(line for line in lines if line.startswith("bert-base "))
    assert all(fact in bert for fact in ("google-bert/bert-base-uncased", "1,12 mean", "Apache-2.0"))
    marked = {line.split()[0] for line in lines if " * " in line}
    assert marked == {entry.name for entry in catalogue() if entry.as_published}
    assert "*: as its authors publish it" in result.stderr


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["ALBERT"], ["albert-base", "albert-large"]),
        (["intfloat", "xlm", "LARGE"], LARGE_E5),
        (["intfloat xlm large"], LARGE_E5),
        (["bge"], ["bge-small", "bge-base", "bge-large", "bge-m3"]),
        (["BAAI"], ["bge-small", "bge-base", "bge-large", "bge-m3"]),
        (["static"], ["potion", "static-retrieval", "static-multilingual"]),
    ],
)
def test_search_finds_entries_by_words(words: list[str], names: list[str]) -> None:
    assert names_in_json(*words) == names
    assert all(name in run(*words).stdout for name in names)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["qqqqqqqq"], "see whiten models for all of them. whiten-export also takes any ORG/NAME of the hub"),
        (["bqe", "--json"], "did you mean bge-small or bge-base or bge-large? whiten-export also takes any ORG/NAME"),
    ],
)
def test_no_match_is_one_line(arguments: list[str], hint: str) -> None:
    assert f"matches '{arguments[0]}'; {hint}" in refused("models", *arguments, code=1)


def test_one_name_shows_all_details() -> None:
    shown = run("SpanBERT/spanbert-base-cased").stdout
    for fact in ("spanbert-base-cased", "CC-BY-NC-4.0", "casing"):
        assert fact in shown
    assert all(key not in shown for key in ("as published", "unit length", "dimensions", "prompt", "remote"))
    assert "minilm-l12-h384" in run("minilm").stdout
    assert names_in_json("minilm") == ["minilm"]


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_details_of_every_entry_are_complete_and_fit_the_terminal(entry: Entry) -> None:
    lines = details(entry).splitlines()
    assert lines[0].split() == ["name", entry.name]
    assert all(line.strip() and "None" not in line for line in lines)
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "embeddinggemma",
            [
                "as published yes, unless layers or a whitening are named",
                "unit length yes",
                "dimensions 768, 512, 256, 128",
                "longest text 2048 tokens",
                'prompts query: "task: search result | query: "',
                'document: "title: none | text: "',
            ],
        ),
        ("angle-llama", ["default prompt A", r'prompts A: "Summarize sentence \"{text}\" in one word:\""']),
        ("jina-v3", ["remote code needs --trust-remote-code"]),
    ],
)
def test_details_show_how_a_model_is_published(name: str, lines: list[str]) -> None:
    shown = [re.sub(r"^(\S+( \S+)*)?  +", r"\1 ", line).strip() for line in run(name).stdout.splitlines()]
    assert [line for line in lines if line not in shown] == []


def test_a_prompt_too_long_for_a_line_stands_whole_below_its_name() -> None:
    lines = run("e5-mistral").stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if line.endswith("web_search_query:"))
    prompt = r'"Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "'
    assert lines[place + 1].strip() == prompt


def test_json_has_every_field() -> None:
    row = json.loads(run("qwen3-embedding-0.6b", "--json").stdout)[0]
    assert row["prompts"]["query"].endswith("\nQuery:")
    assert (row["as_published"], row["normalize"]) == (True, True)
    row = json.loads(run("spanbert-large", "--json").stdout)[0]
    assert set(row) == {field.name for field in fields(Entry)}
    assert row["lowercase"] is False
    assert (row["source"], row["pooling"], row["adapter_of"], row["file"]) == ("transformers", "mean", None, None)
