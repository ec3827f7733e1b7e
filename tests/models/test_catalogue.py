"""Test the catalogue's facts, and finding an entry by its names."""

import re
from typing import get_args

import pytest

import whiten_models.catalogue
from whiten_models.catalogue import Entry, Published, catalogue, find, near_matches
from whiten_runtime.bundle.records import pooling_modes

PAPERS_ROWS = [
    "bert-base", "bert-large", "roberta-base", "roberta-large", "distilbert", "labse", "spanbert-base",
    "spanbert-large", "deberta-base", "deberta-large", "albert-base", "albert-large", "t5-base", "t5-large",
    "layoutlm-base", "layoutlm-large", "xlm", "xlm-roberta-base", "xlm-roberta-large", "m-bert", "mpnet",
    "squeezebert", "specter", "minilm-l12-h384", "dialogrpt", "electra", "mobilebert", "sbert",
    "simcse", "unsup-simcse", "angle-bert", "llama-7b", "llama-2-7b", "angle-llama", "text-embedding-3-small", "minilm",
    "glove", "sif",
]  # fmt: skip

PUBLISHED = {
    "BERT-base": (62.97, 67.77),
    "RoBERTa-base": (59.53, 67.17),
    "SpanBERT-base": (61.10, 68.25),
    "DeBERTa-base": (61.19, 67.14),
    "ALBERT-base": (51.87, 62.24),
    "T5-base": (49.41, 67.23),
    "LayoutLM-base": (29.26, 62.17),
    "XLM-base": (54.53, 67.46),
    "DistilBERT": (64.12, 67.48),
    "M-BERT": (60.82, 66.60),
    "MPNet": (60.58, 67.85),
    "SqueezeBERT": (59.70, 66.29),
    "LaBSE": (71.56, 71.71),
    "SPECTER": (61.85, 67.24),
    "MiniLM": (55.30, 66.51),
    "BERT-large": (61.78, 68.16),
    "RoBERTa-large": (60.78, 67.54),
    "SpanBERT-large": (63.10, 68.77),
    "DeBERTa-large": (62.09, 69.06),
    "ALBERT-large": (55.94, 63.17),
    "T5-large": (39.42, 67.60),
    "LayoutLM-large": (45.26, 65.83),
    "XLM-large": (57.61, 67.37),
    "DialogRPT": (53.02, 67.12),
}
"""Tables 1 and 2 of WhiteningBERT."""

MODEL_TYPES = {
    "bert", "roberta", "distilbert", "deberta", "albert", "t5", "layoutlm", "xlm", "xlm-roberta", "mpnet",
    "squeezebert", "gpt2", "electra", "mobilebert", "llama",
    "gemma3_text", "mistral", "modernbert", "nomic_bert", "qwen2", "qwen3",
}  # fmt: skip

SINCE_TRANSFORMERS_5 = {"nomic_bert"}

WEB_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
BGE_QUERY = "Represent this sentence for searching relevant passages: "

KINDS = {"WordPiece", "byte-level BPE", "SentencePiece unigram", "SentencePiece BPE", "BPE", "words", ""}

NOT_FINE_TUNED = set(PAPERS_ROWS) - {
    "labse", "minilm", "sbert", "simcse", "unsup-simcse", "angle-bert", "angle-llama",
}  # fmt: skip


def entry_of(name: str) -> Entry:
    entry = find(name)
    assert entry is not None
    return entry


def test_catalogue_lists_every_model_of_the_papers_with_a_checkpoint() -> None:
    assert sorted(entry.name for entry in catalogue()[: len(PAPERS_ROWS)]) == sorted(PAPERS_ROWS)


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_fields_of_every_entry_agree_with_each_other(entry: Entry) -> None:
    assert re.fullmatch(r"[a-z0-9.-]+", entry.name)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9.-]+|see the (checkpoint|provider)", entry.licence)
    assert entry.paper_name
    assert entry.note == "" or entry.note.endswith(".")
    assert all(0 <= layer <= entry.layers for layer in entry.recommended_layers)
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
    assert (entry.layers > 0) == (entry.source == "transformers") == bool(entry.model_type)
    assert entry.tokenizer.kind in KINDS
    assert entry.tokenizer.lowercase_override in (None, entry.tokenizer.lowercase)
    assert (entry.tokenizer.lowercase_override is False) == entry.name.startswith("spanbert")
    assert entry.tokenizer.vocabulary is None or entry.tokenizer.vocabulary > 10_000


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_what_is_exported_as_published_agrees_with_the_modules(entry: Entry) -> None:
    if not entry.as_published:
        assert (entry.normalize, dict(entry.prompts), entry.dimensions, entry.modules) == (False, {}, (), ())
        assert (entry.max_length, entry.remote_code) == (None, False)
        return
    assert entry.recommended_layers == (entry.layers,)
    assert entry.default_prompt is None or entry.default_prompt in entry.prompts
    assert all(name and name == name.strip() for name in entry.prompts)
    assert all(prompt.count("{text}") <= 1 for prompt in entry.prompts.values())
    width = entry.width
    if entry.modules:
        order = r"(Pooling\(\w+\)( Dense\(\d+->\d+(, Tanh)?\))*|StaticEmbedding)( Normalize)?"
        assert re.fullmatch(order, " ".join(entry.modules))
        first = "StaticEmbedding" if entry.source == "static" else f"Pooling({entry.pooling})"
        assert entry.modules[0] == first
        assert entry.normalize == (entry.modules[-1] == "Normalize")
        for taken, given in re.findall(r"Dense\((\d+)->(\d+)", " ".join(entry.modules)):
            assert int(taken) == width
            width = int(given)
    assert list(entry.dimensions) == sorted(set(entry.dimensions), reverse=True)
    assert all(0 < dimension <= width for dimension in entry.dimensions)
    most = 512 if entry.model_type in ("bert", "mpnet", "distilbert") else 32768
    assert entry.max_length is None or 0 < entry.max_length <= most


def test_model_types_are_those_of_transformers() -> None:
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    used = {entry.model_type for entry in catalogue() if entry.source == "transformers"}
    assert used == MODEL_TYPES
    assert used - SINCE_TRANSFORMERS_5 <= set(auto.CONFIG_MAPPING_NAMES)


def test_published_figures_equal_the_papers() -> None:
    held = {(entry.paper_name, entry.published) for entry in catalogue() if entry.published}
    assert held == {(name, Published(*figures)) for name, figures in PUBLISHED.items()}


def test_facts_that_exports_rely_on() -> None:
    assert entry_of("t5-base").tokenizer.specials == ((), ("</s>",))
    assert entry_of("llama-2").tokenizer.specials == (("<s>",), ())
    assert entry_of("dialogrpt").tokenizer.specials == ((), ())
    assert {entry.name for entry in catalogue() if entry.source == "transformers" and entry.tokenizer.pad is None} == {
        "dialogrpt", "llama-7b", "llama-2-7b", "angle-llama",
    }  # fmt: skip
    assert entry_of("angle-llama").adapter_of == entry_of("llama-2-7b").checkpoint
    pooling = {name: entry_of(name).pooling for name in ("simcse", "unsup-simcse", "angle-bert", "angle-llama", "sif")}
    assert pooling == {
        "simcse": "pooler", "unsup-simcse": "cls", "angle-bert": "cls_avg", "angle-llama": "last", "sif": "sif",
    }  # fmt: skip
    assert [entry_of(name).pooling for name in ("glove", "sbert", "labse", "specter")] == ["mean", "mean", "cls", "cls"]
    assert (entry_of("minilm").recommended_layers, entry_of("sbert").recommended_layers) == ((6,), (12,))
    with_types = {entry.model_type for entry in catalogue() if entry.token_types}
    assert with_types == {"bert", "albert", "layoutlm", "squeezebert", "electra", "mobilebert", "nomic_bert"}


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
    assert near_matches("bqe", count=4)[-1] == "bge-m3"
    assert set(near_matches("nomik", count=2)) == {"nomic-v1.5", "nomic-v2"}
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
        ("gte-qwen2", "query", f"{WEB_SEARCH} "),
        ("qwen3-embedding-0.6b", "query", WEB_SEARCH),
        ("qwen3-embedding-4b", "document", ""),
        ("nomic-v1.5", "search_document", "search_document: "),
        ("nomic-v2", "passage", "search_document: "),
        ("modernbert-embed", "search_query", "search_query: "),
        ("jina-v3", "retrieval.query", "Represent the query for retrieving evidence documents: "),
        ("embeddinggemma", "query", "task: search result | query: "),
        ("embeddinggemma", "document", "title: none | text: "),
        ("angle-llama", "A", 'Summarize sentence "{text}" in one word:"'),
    ],
)
def test_prompts_are_those_of_the_authors(name: str, prompt: str, text: str) -> None:
    assert entry_of(name).prompts[prompt] == text


def test_only_angle_llama_takes_a_prompt_where_none_is_named() -> None:
    assert {entry.name: entry.default_prompt for entry in catalogue() if entry.default_prompt} == {"angle-llama": "A"}


def test_models_with_code_of_their_own() -> None:
    assert {entry.name for entry in catalogue() if entry.remote_code} == {"gte-qwen2", "nomic-v2", "jina-v3"}
