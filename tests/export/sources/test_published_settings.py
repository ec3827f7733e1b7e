"""Test the settings of folders of sentence-transformers: prompts, similarity, length, casing and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from support.module_files import write_json, write_modules, write_pooling
from whiten import WhitenError
from whiten_export.sources.checkpoints.published import read_published

SETTINGS, TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"
STATES = {"method": "forward", "method_output_name": "last_hidden_state"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A Transformer and its Pooling, of the mean."""
    write_modules(tmp_path, "Transformer", "Pooling")
    write_pooling(tmp_path)
    return tmp_path


def test_prompts_and_similarity_are_read(root: Path) -> None:
    prompts = {"query": "query: ", "passage": None, "sts": ""}
    content = {"prompts": prompts, "default_prompt_name": "sts", "similarity_fn_name": "manhattan"}
    write_json(root / SETTINGS, content | {"__version__": {"sentence_transformers": "3.4.1"}, "more": 1})
    published = read_published(root)
    assert published.prompts == {"query": "query: ", "passage": "", "sts": ""}
    assert (published.default_prompt_name, published.similarity_fn_name) == ("sts", "manhattan")


@pytest.mark.parametrize("content", [{}, {"prompts": None}, {"prompts": {}, "similarity_fn_name": None}])
def test_settings_may_be_empty(root: Path, content: dict[str, Any]) -> None:
    write_json(root / SETTINGS, content)
    published = read_published(root)
    assert (published.prompts, published.default_prompt_name, published.similarity_fn_name) == ({}, None, "cosine")


@pytest.mark.parametrize("default", ["query", "document"])
def test_default_prompts_that_sentence_transformers_adds_are_none(root: Path, default: str) -> None:
    """Its prompts for queries and documents are empty if the folder has none."""
    write_json(root / SETTINGS, {"prompts": {"sts": "similar: "}, "default_prompt_name": default})
    assert read_published(root).default_prompt_name is None


def test_dot_product_has_two_names(root: Path) -> None:
    for name in ("dot", "dot_score"):
        write_json(root / SETTINGS, {"similarity_fn_name": name})
        assert read_published(root).similarity_fn_name == "dot"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"model_type": "SparseEncoder"}, "model_type is 'SparseEncoder'; wanted SentenceTransformer"),
        ({"model_type": "CrossEncoder"}, "model_type is 'CrossEncoder'"),
        ({"prompts": {"angle": "Say {text}"}}, "prompt 'angle' contains {text}"),
        ({"prompts": ["query: "]}, "prompts is ['query: ']"),
        ({"prompts": {"query": 7}}, "prompt 'query' is 7; wanted a text"),
        ({"prompts": {"query": ["query: "]}}, "prompt 'query' is ['query: ']"),
        ({"default_prompt_name": "sts"}, "default_prompt_name is 'sts', which is not one of its prompts"),
        ({"prompts": {"query": "q: "}, "default_prompt_name": ["query"]}, "default_prompt_name is"),
        ({"similarity_fn_name": "hamming"}, "similarity_fn_name is 'hamming'; wanted cosine, dot"),
        ({"similarity_fn_name": ["dot"]}, "similarity_fn_name is"),
    ],
)
def test_settings_that_cannot_be_obeyed_are_refused(root: Path, content: dict[str, Any], found: str) -> None:
    path = write_json(root / SETTINGS, content)
    refused(root, path, found)


@pytest.mark.parametrize("name", [TRANSFORMER, "sentence_roberta_config.json", "sentence_xlm-roberta_config.json"])
def test_length_and_casing_are_read_whatever_the_file_is_called(root: Path, name: str) -> None:
    write_json(root / name, {"max_seq_length": 128, "do_lower_case": True})
    published = read_published(root)
    assert (published.max_seq_length, published.do_lower_case) == (128, True)


@pytest.mark.parametrize(
    "content",
    [
        {"model_args": {"attn_implementation": "sdpa", "torch_dtype": "bfloat16"}, "tokenizer_args": {}},
        {"model_kwargs": {"add_pooling_layer": False}, "config_args": {"use_cache": False}, "config_kwargs": None},
        {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings", "unpad_inputs": True},
        {"modality_config": {"text": STATES}, "query_length": None, "query_expansion": False, "document_length": {}},
        {"modality_config": {"image": {"method": "get_image_features"}}},
    ],
)
def test_settings_that_change_no_vector_are_ignored(root: Path, content: dict[str, Any]) -> None:
    write_json(root / TRANSFORMER, content)
    assert read_published(root).pooling == "mean"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"model_args": {"rope_scaling": 2}}, "model_args sets rope_scaling"),
        ({"model_kwargs": {"num_hidden_layers": 2}}, "model_kwargs sets num_hidden_layers"),
        ({"tokenizer_args": {"do_lower_case": True}}, "tokenizer_args sets do_lower_case"),
        ({"processor_kwargs": {"padding_side": "left"}}, "processor_kwargs sets padding_side"),
        ({"config_args": {"is_causal": False}}, "config_args sets is_causal"),
        ({"config_kwargs": {"is_causal": False}}, "config_kwargs sets is_causal"),
        ({"model_args": 7}, "model_args is 7"),
        ({"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
        ({"modality_config": {"text": STATES | {"method_output_name": "pooler_output"}}}, "a text's vectors come from"),
        ({"modality_config": ["text"]}, "modality_config is ['text']"),
        ({"modality_config": {"text": "forward"}}, "text is 'forward'"),
        ({"module_output_name": "sentence_embedding"}, "module_output_name is 'sentence_embedding'"),
        ({"processing_kwargs": {"text": {"add_special_tokens": False}}}, "'processing_kwargs'"),
        ({"query_length": 32}, "has the setting 'query_length', which is not supported"),
        ({"brand_new": "x"}, "has the setting 'brand_new', which is not supported"),
    ],
)
def test_settings_of_the_transformer_that_change_vectors_are_refused(
    root: Path, content: dict[str, Any], found: str
) -> None:
    path = write_json(root / TRANSFORMER, {"max_seq_length": 128} | content)
    refused(root, path, found)


def refused(root: Path, path: Path, found: str) -> None:
    """Read a folder that must be refused in one line that names the file and what was found."""
    with pytest.raises(WhitenError) as caught:
        read_published(root)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert found in message
    assert "\n" not in message
