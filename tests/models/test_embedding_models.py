"""Test the catalogue's facts about models that are exported as their authors publish them."""

import re

import pytest

from whiten_models.catalogue import Entry, catalogue, find

FAMILIES = [
    "bge-small", "bge-base", "bge-large", "bge-m3", "e5-small", "e5-base", "e5-large", "multilingual-e5-small",
    "multilingual-e5-base", "multilingual-e5-large", "multilingual-e5-large-instruct", "e5-mistral", "gte-base",
    "gte-large", "gte-modernbert", "gte-qwen2", "qwen3-embedding-0.6b", "qwen3-embedding-4b", "nomic-v1.5", "nomic-v2",
    "modernbert-embed", "mxbai-large", "arctic-m", "arctic-l", "arctic-l-v2", "jina-v3", "embeddinggemma", "granite-r2",
    "granite-small-r2", "multilingual-minilm", "multilingual-mpnet", "all-mpnet", "gtr-base", "sentence-t5",
    "distiluse", "instructor", "potion", "static-retrieval", "static-multilingual",
]  # fmt: skip

OF_THE_PAPERS = [
    "labse", "specter", "sbert", "simcse", "unsup-simcse", "angle-bert", "angle-llama", "minilm",
]  # fmt: skip

WEB_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
BGE_QUERY = "Represent this sentence for searching relevant passages: "

each_entry = pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)


def entry_of(name: str) -> Entry:
    entry = find(name)
    assert entry is not None
    return entry


def dense_layers(entry: Entry) -> list[tuple[int, int]]:
    sizes = (re.fullmatch(r"Dense\((\d+)->(\d+)(, Tanh)?\)", module) for module in entry.modules)
    return [(int(match[1]), int(match[2])) for match in sizes if match]


def vector_width(entry: Entry) -> int:
    return dense_layers(entry)[-1][1] if dense_layers(entry) else entry.width


def test_catalogue_lists_the_embedding_models_by_family() -> None:
    published = [entry.name for entry in catalogue() if entry.as_published]
    assert sorted(published) == sorted([*OF_THE_PAPERS, *FAMILIES])
    assert sorted(entry.name for entry in catalogue()[-len(FAMILIES) :]) == sorted(FAMILIES)


@each_entry
def test_models_exported_as_published_take_the_last_layer(entry: Entry) -> None:
    if entry.as_published:
        assert entry.recommended_layers == (entry.layers,)
    else:
        assert (entry.normalize, dict(entry.prompts), entry.dimensions, entry.modules) == (False, {}, (), ())
        assert (entry.max_length, entry.remote_code) == (None, False)


@each_entry
def test_modules_are_known_in_their_order(entry: Entry) -> None:
    order = r"(Pooling\(\w+\)( Dense\(\d+->\d+(, Tanh)?\))*|StaticEmbedding)( Normalize)?"
    assert re.fullmatch(order, " ".join(entry.modules)) or entry.modules == ()
    assert (entry.modules[:1] == ("StaticEmbedding",)) == (entry.source == "static")


@each_entry
def test_pooling_is_that_of_the_modules(entry: Entry) -> None:
    in_modules = {"StaticEmbedding": "Pooling(mean)"}
    if entry.modules:
        assert in_modules.get(entry.modules[0], entry.modules[0]) == f"Pooling({entry.pooling})"


@each_entry
def test_vectors_are_normalised_where_the_modules_end_so(entry: Entry) -> None:
    if entry.modules:
        assert entry.normalize == (entry.modules[-1] == "Normalize")


@each_entry
def test_dense_layers_fit_the_network_and_each_other(entry: Entry) -> None:
    width = entry.width
    for taken, given in dense_layers(entry):
        assert taken == width
        width = given


@each_entry
def test_default_prompt_is_one_of_the_prompts(entry: Entry) -> None:
    assert entry.default_prompt is None or entry.default_prompt in entry.prompts
    assert all(name and name == name.strip() for name in entry.prompts)
    assert all(prompt.count("{text}") <= 1 for prompt in entry.prompts.values())


@each_entry
def test_dimensions_fall_and_start_within_the_vector(entry: Entry) -> None:
    assert list(entry.dimensions) == sorted(set(entry.dimensions), reverse=True)
    assert all(0 < dimension <= vector_width(entry) for dimension in entry.dimensions)


@each_entry
def test_maximum_length_is_a_number_of_tokens(entry: Entry) -> None:
    assert entry.max_length is None or 0 < entry.max_length <= 32768
    if entry.model_type in ("bert", "mpnet", "distilbert"):
        assert entry.max_length is None or entry.max_length <= 512


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


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("bge-m3", ("Pooling(cls)", "Normalize")),
        ("mxbai-large", ("Pooling(cls)",)),
        ("gte-modernbert", ("Pooling(cls)",)),
        ("gte-base", ("Pooling(mean)", "Normalize")),
        ("qwen3-embedding-4b", ("Pooling(last)", "Normalize")),
        ("labse", ("Pooling(cls)", "Dense(768->768, Tanh)", "Normalize")),
        ("embeddinggemma", ("Pooling(mean)", "Dense(768->3072)", "Dense(3072->768)", "Normalize")),
        ("distiluse", ("Pooling(mean)", "Dense(768->512, Tanh)")),
        ("multilingual-minilm", ("Pooling(mean)",)),
        ("potion", ("StaticEmbedding", "Normalize")),
        ("static-retrieval", ("StaticEmbedding",)),
    ],
)
def test_modules_are_those_of_the_folder(name: str, modules: tuple[str, ...]) -> None:
    assert entry_of(name).modules == modules


def test_models_with_code_of_their_own() -> None:
    assert {entry.name for entry in catalogue() if entry.remote_code} == {"gte-qwen2", "nomic-v2", "jina-v3"}
