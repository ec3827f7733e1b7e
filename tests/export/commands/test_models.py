"""Test `whiten models` as people and scripts call it."""

import json
import re
from dataclasses import fields
from functools import partial

import pytest

from support.cli import invoke
from whiten_export.commands.models import details, models, search
from whiten_models.catalogue import Entry, catalogue

run = partial(invoke, models)

LARGE_E5 = ["multilingual-e5-large", "multilingual-e5-large-instruct"]


def names_in_json(*arguments: str) -> list[str]:
    return [row["name"] for row in json.loads(run(*arguments, "--json").stdout)]


def test_the_table_has_every_entry_and_fits_a_wide_terminal() -> None:
    lines = run().stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", *(entry.name for entry in catalogue())]
    assert max(map(len, lines)) <= 162
    bert = next(line for line in lines if line.startswith("bert-base "))
    assert "*" not in bert
    assert all(fact in bert for fact in ("12/768", "1,12 mean", "62.97", "67.77", "Apache-2.0"))


def test_the_table_marks_the_models_that_are_exported_as_published() -> None:
    marked = {line.split()[0] for line in run().stdout.splitlines() if " * " in line}
    assert marked == {entry.name for entry in catalogue() if entry.as_published}
    assert "*: as its authors publish it" in run().stderr


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["ALBERT"], ["albert-base", "albert-large"]),
        (["SentencePiece", "xlm", "LARGE"], ["xlm-roberta-large", *LARGE_E5]),
        (["sentencepiece xlm large"], ["xlm-roberta-large", *LARGE_E5]),
        (["gpt2"], ["dialogrpt"]),
        (["LoRA"], ["angle-llama", "jina-v3"]),
        (["chatgpt"], ["text-embedding-3-small"]),
        (["bge"], ["bge-small", "bge-base", "bge-large", "bge-m3"]),
        (["BAAI"], ["bge-small", "bge-base", "bge-large", "bge-m3"]),
        (["snowflake-arctic"], ["arctic-m", "arctic-l", "arctic-l-v2"]),
        (["Qwen"], ["gte-qwen2", "qwen3-embedding-0.6b", "qwen3-embedding-4b"]),
        (["gemma"], ["embeddinggemma"]),
        (["static"], ["potion", "static-retrieval", "static-multilingual"]),
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
        (["bqe"], "did you mean bge-small or bge-base or bge-large?"),
        (["bqe"], "whiten-export also takes any ORG/NAME of the hub"),
        (["qqqqqqqq"], "whiten-export also takes any ORG/NAME of the hub"),
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
                "modules Pooling(mean), Dense(768->3072), Dense(3072->768), Normalize",
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


def test_details_of_other_models_show_none_of_it() -> None:
    shown = run("bert-base").stdout
    assert all(key not in shown for key in ("as published", "modules", "unit length", "dimensions", "prompt", "remote"))


def test_a_prompt_too_long_for_a_line_stands_whole_below_its_name() -> None:
    lines = run("e5-mistral").stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if line.endswith("web_search_query:"))
    prompt = r'"Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "'
    assert lines[place + 1].strip() == prompt


def test_json_has_the_facts_of_embedding_models() -> None:
    row = json.loads(run("qwen3-embedding-0.6b", "--json").stdout)[0]
    assert row["prompts"]["query"].endswith("\nQuery:")
    assert row["prompts"]["document"] == ""
    assert row["dimensions"][0] == row["width"] == 1024
    assert row["modules"] == ["Pooling(last)", "Normalize"]
    assert (row["as_published"], row["normalize"], row["remote_code"]) == (True, True, False)
    assert (row["default_prompt"], row["max_length"]) == (None, 32768)


def test_json_has_every_field() -> None:
    row = json.loads(run("spanbert-large", "--json").stdout)[0]
    assert set(row) == {field.name for field in fields(Entry)}
    assert row["tokenizer"]["lowercase_override"] is False
    assert row["tokenizer"]["specials"] == [["[CLS]"], ["[SEP]"]]
    assert row["published"] == {"raw": 63.1, "whitened": 68.77}
    assert (row["source"], row["pooling"], row["adapter_of"], row["file"]) == ("transformers", "mean", None, None)
