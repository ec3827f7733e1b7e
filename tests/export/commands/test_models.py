"""Test `whiten models` as people and scripts call it."""

import json
from dataclasses import fields
from functools import partial

import pytest

from support.cli import invoke
from whiten_export.commands.models import details, models, search
from whiten_models.catalogue import Entry, catalogue

run = partial(invoke, models)


def names_in_json(*arguments: str) -> list[str]:
    return [row["name"] for row in json.loads(run(*arguments, "--json").stdout)]


def test_the_table_has_every_entry_and_fits_a_wide_terminal() -> None:
    lines = run().stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", *(entry.name for entry in catalogue())]
    assert max(map(len, lines)) <= 162
    bert = next(line for line in lines if line.startswith("bert-base "))
    assert all(fact in bert for fact in ("12/768", "1,12 mean", "62.97", "67.77", "Apache-2.0"))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["ALBERT"], ["albert-base", "albert-large"]),
        (["SentencePiece", "large"], ["albert-large", "t5-large", "xlm-roberta-large"]),
        (["sentencepiece large"], ["albert-large", "t5-large", "xlm-roberta-large"]),
        (["gpt2"], ["dialogrpt"]),
        (["LoRA"], ["angle-llama"]),
        (["chatgpt"], ["text-embedding-3-small"]),
    ],
)
def test_search_finds_entries_by_words(words: list[str], names: list[str]) -> None:
    assert names_in_json(*words) == names
    assert all(name in run(*words).stdout for name in names)


def test_empty_search_finds_every_entry() -> None:
    assert search("") == search("  ") == catalogue()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["qqqqqqqq"], "see whiten models"),
        (["distilbret"], "did you mean distilbert"),
        (["qqqqqqqq", "--json"], "see whiten"),
    ],
)
def test_no_match_is_one_line(arguments: list[str], hint: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert f"matches '{arguments[0]}'" in result.stderr
    assert hint in result.stderr


def test_one_name_shows_all_details() -> None:
    shown = run("SpanBERT/spanbert-base-cased").stdout
    for fact in ("spanbert-base-cased", "CC-BY-NC-4.0", "[CLS] text [SEP]", "[PAD]", "28996 tokens", "61.10", "68.25"):
        assert fact in shown
    assert "set by the catalogue" in shown
    assert "lower-cases by" in shown
    assert "minilm-l12" in run("minilm").stdout
    assert names_in_json("minilm") == ["minilm"]


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_details_of_every_entry_are_complete_and_fit_the_terminal(entry: Entry) -> None:
    lines = details(entry).splitlines()
    assert lines[0].split() == ["name", entry.name]
    assert all(line.strip() and "None" not in line for line in lines)
    assert max(map(len, lines)) <= 120


def test_json_has_every_field() -> None:
    row = json.loads(run("spanbert-large", "--json").stdout)[0]
    assert set(row) == {field.name for field in fields(Entry)}
    assert row["tokenizer"]["lowercase_override"] is False
    assert row["tokenizer"]["specials"] == [["[CLS]"], ["[SEP]"]]
    assert row["published"] == {"raw": 63.1, "whitened": 68.77}
    assert (row["source"], row["pooling"], row["adapter_of"], row["file"]) == ("transformers", "mean", None, None)
