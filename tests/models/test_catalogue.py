"""Test the catalogue's facts, and finding an entry by its names."""

import re
from typing import get_args

import pytest

import whiten_models.catalogue
from support.families import SINCE_TRANSFORMERS_5
from whiten_models.catalogue import Entry, catalogue, find, near_matches
from whiten_runtime.bundle.manifest import pooling_modes

PAPERS_ROWS = [
    "bert-base", "bert-large", "roberta-base", "roberta-large", "distilbert", "labse", "spanbert-base",
    "spanbert-large", "deberta-base", "deberta-large", "albert-base", "albert-large", "t5-base", "t5-large",
    "layoutlm-base", "layoutlm-large", "xlm", "xlm-roberta-base", "xlm-roberta-large", "m-bert", "mpnet",
    "squeezebert", "specter", "minilm-l12-h384", "dialogrpt", "electra", "mobilebert", "sbert",
    "simcse", "unsup-simcse", "angle-bert", "llama-7b", "llama-2-7b", "angle-llama", "text-embedding-3-small",
    "glove", "sif",
]  # fmt: skip

WEB_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
BGE_QUERY = "Represent this sentence for searching relevant passages: "

NOT_FINE_TUNED = set(PAPERS_ROWS) - {
    "labse", "sbert", "simcse", "unsup-simcse", "angle-bert", "angle-llama",
}  # fmt: skip


def entry_of(name: str) -> Entry:
    entry = find(name)
    assert entry is not None
    return entry


def test_catalogue_lists_every_model_of_the_papers_with_a_checkpoint() -> None:
    assert sorted(entry.name for entry in catalogue()[-len(PAPERS_ROWS) :]) == sorted(PAPERS_ROWS)
    assert all(entry.as_published for entry in catalogue()[: -len(PAPERS_ROWS)])


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_fields_of_every_entry_agree_with_each_other(entry: Entry) -> None:
    assert re.fullmatch(r"[a-z0-9.-]+", entry.name)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9.-]+|see the (checkpoint|provider)", entry.licence)
    assert all(layer >= 0 for layer in entry.recommended_layers)
    assert list(entry.recommended_layers) == sorted(set(entry.recommended_layers))
    assert (entry.revision is None) == (entry.weights_sha256 is None) == (entry.name != "minilm")
    assert entry.weights_sha256 is None or re.fullmatch(r"[0-9a-f]{64}", entry.weights_sha256)
    assert entry.source in get_args(whiten_models.catalogue.Source)
    assert pooling_modes(entry.pooling)
    assert entry.sentence_similarity == (entry.name not in NOT_FINE_TUNED)
    is_hub_id = re.fullmatch(r"[\w.-]+/[\w.-]+", entry.checkpoint) is not None
    assert is_hub_id == (entry.source != "vectors")
    assert (entry.file is not None) == (entry.source == "words")
    assert (entry.recommended_layers == ()) == (entry.source == "vectors")
    assert (entry.source == "transformers") == bool(entry.model_type)
    assert entry.lowercase is (False if entry.name.startswith("spanbert") else None)


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_only_what_is_exported_as_published_has_facts_of_its_authors(entry: Entry) -> None:
    if not entry.as_published:
        assert (entry.normalize, dict(entry.prompts), entry.dimensions) == (False, {}, ())
        assert entry.max_length is None
        return
    assert len(entry.recommended_layers) == 1
    assert entry.default_prompt is None or entry.default_prompt in entry.prompts
    assert all(name and name == name.strip() for name in entry.prompts)
    assert all(prompt.count("{text}") <= 1 for prompt in entry.prompts.values())
    assert list(entry.dimensions) == sorted(set(entry.dimensions), reverse=True)
    assert all(dimension > 0 for dimension in entry.dimensions)
    most = 512 if entry.model_type in ("bert", "mpnet", "distilbert") else 32768
    assert entry.max_length is None or 0 < entry.max_length <= most


def test_model_types_are_those_of_transformers() -> None:
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    used = {entry.model_type for entry in catalogue() if entry.source == "transformers"}
    assert used - SINCE_TRANSFORMERS_5 <= set(auto.CONFIG_MAPPING_NAMES)


def test_facts_that_exports_rely_on() -> None:
    assert entry_of("angle-llama").adapter_of == entry_of("llama-2-7b").checkpoint
    pooling = {name: entry_of(name).pooling for name in ("simcse", "unsup-simcse", "angle-bert", "angle-llama", "sif")}
    assert pooling == {
        "simcse": "pooler", "unsup-simcse": "cls", "angle-bert": "cls_avg", "angle-llama": "last", "sif": "sif",
    }  # fmt: skip
    assert [entry_of(name).pooling for name in ("glove", "sbert", "labse", "specter")] == ["mean", "mean", "cls", "cls"]
    assert (entry_of("minilm").recommended_layers, entry_of("sbert").recommended_layers) == ((6,), (12,))


def test_names_are_unambiguous() -> None:
    spellings = [name.lower() for entry in catalogue() for name in (entry.name, *entry.aliases)]
    assert len(spellings) == len(set(spellings))
    for entry in catalogue():
        for name in (entry.name, *entry.aliases):
            assert find(name.upper()) is entry
        if entry.source != "words":
            assert find(entry.checkpoint) is entry


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("minilm", "minilm"),
        ("MiniLM", "minilm"),
        ("all-minilm-l6-v2", "minilm"),
        ("sentence-transformers/all-MiniLM-L6-v2", "minilm"),
        ("microsoft/MiniLM-L12-H384-uncased", "minilm-l12-h384"),
        ("bert-large-uncased", "bert-large"),
        ("xlm-mlm-en-2048", "xlm"),
        ("stanfordnlp/glove", "glove"),
        ("baai/bge-m3", "bge-m3"),
        ("bge-base-en-v1.5", "bge-base"),
        ("Qwen/Qwen3-Embedding-0.6B", "qwen3-embedding-0.6b"),
        ("potion-base-8M", "potion"),
    ],
)
def test_find_by_name_alias_or_checkpoint(name: str, found: str) -> None:
    assert entry_of(name).name == found


def test_near_matches_of_misspelt_names() -> None:
    assert near_matches("distilbret")[0] == "distilbert"
    assert near_matches("stanfordnlp/glov")[0] == "glove"
    assert near_matches("sentence-transformers/LaBES")[0] == "labse"
    assert near_matches("qqqqqqqq") == []
    assert find("qqqqqqqq") is find("") is None


def test_near_matches_of_a_misspelt_word_in_a_name() -> None:
    assert near_matches("bqe") == ["bge-small", "bge-base", "bge-large"]
    assert near_matches("nomik")[0] == "nomic-v1.5"
    assert near_matches("BAAI/bge-small-zh-v1.5")[0] == "bge-small"


def test_prompts_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        entry_of("e5-base").prompts["query"] = ""  # type: ignore[index]
    assert len({hash(entry) for entry in catalogue()}) > 1


@pytest.mark.parametrize(
    ("name", "prompt", "text"),
    [
        ("bge-small", "query", BGE_QUERY),
        ("mxbai-large", "query", BGE_QUERY),
        ("arctic-m", "query", BGE_QUERY),
        ("arctic-l-v2", "query", "query: "),
        ("e5-large", "query", "query: "),
        ("multilingual-e5-base", "document", "passage: "),
        ("multilingual-e5-large-instruct", "query", f"{WEB_SEARCH} "),
        ("e5-mistral", "web_search_query", f"{WEB_SEARCH} "),
        ("qwen3-embedding-0.6b", "query", WEB_SEARCH),
        ("qwen3-embedding-4b", "document", ""),
        ("nomic-v1.5", "search_document", "search_document: "),
        ("modernbert-embed", "search_query", "search_query: "),
        ("embeddinggemma", "query", "task: search result | query: "),
        ("embeddinggemma", "document", "title: none | text: "),
        ("angle-llama", "A", 'Summarize sentence "{text}" in one word:"'),
    ],
)
def test_prompts_are_those_of_the_authors(name: str, prompt: str, text: str) -> None:
    assert entry_of(name).prompts[prompt] == text


def test_only_angle_llama_takes_a_prompt_where_none_is_named() -> None:
    assert {entry.name: entry.default_prompt for entry in catalogue() if entry.default_prompt} == {"angle-llama": "A"}
