"""Test how folders of sentence-transformers are read; sentence-transformers itself writes their modules."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import (
    CNN,
    Dense,
    LayerNorm,
    Normalize,
    Pooling,
    Router,
    StaticEmbedding,
    WeightedLayerPooling,
)
from torch import nn

from support.checkpoints import OLD, save_adapter, write_json, write_modules, write_tensors
from support.cli import python
from support.hub import Hub
from support.vocabularies import wordpiece
from whiten import UsageError, WhitenError
from whiten_export.sources.published import read_published
from whiten_export.sources.resolve import resolve
from whiten_export.sources.sentence_transformers import load_module, load_table

ROWS = np.random.default_rng(3).normal(size=(5, 4))
SETTINGS, LISTED, TRANSFORMER = "config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"
STATES = {"method": "forward", "method_output_name": "last_hidden_state"}


def save(root: Path, *modules: nn.Module | str) -> Path:
    """Write modules.json and the files of each module; a text is the name of a module without files."""
    kinds = [module if isinstance(module, str) else type(module).__name__ for module in modules]
    write_modules(root, *kinds)
    for path, module in zip((step["path"] for step in json.loads((root / LISTED).read_text())), modules, strict=True):
        (root / path).mkdir(exist_ok=True)
        if not isinstance(module, str):
            module.save(str(root / path))  # type: ignore[operator]
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write a Transformer without a network, a Pooling of the mean, a Dense and a Normalize."""
    return save(tmp_path / "model", "Transformer", Pooling(4), Dense(4, 3), Normalize())


def refused(root: Path, *parts: str, route: str | None = None) -> None:
    """Read a folder that must be refused in one line with these parts."""
    with pytest.raises(WhitenError) as caught:
        read_published(root, route)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "module",
    [
        *(Dense(4, 3, activation_function=kind()) for kind in (nn.Tanh, nn.ReLU, nn.GELU, nn.Sigmoid, nn.SiLU)),
        Dense(4, 3, bias=False, activation_function=nn.Identity()),
        *(Dense(4, width, use_residual=True) for width in (3, 4) if "use_residual" in Dense.config_keys),
        LayerNorm(4),
    ],
    ids=repr,
)
def test_modules_compute_what_sentence_transformers_computes(tmp_path: Path, module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    module.save(str(tmp_path))  # type: ignore[operator]
    features = {"sentence_embedding": torch.from_numpy(ROWS)}
    with torch.no_grad():
        want = module.double()(features)["sentence_embedding"].numpy()
    np.testing.assert_allclose(load_module(type(module).__name__, tmp_path)(ROWS), want, rtol=1e-6, atol=1e-9)


def test_a_plain_folder_has_the_mean_and_nothing_else(tmp_path: Path) -> None:
    published = read_published(save(tmp_path, "Transformer", Pooling(4)))
    assert (published.layers, published.layer_weights, published.pooling) == ((-1,), None, "mean")
    assert [(step.kind, step.folder) for step in published.steps[:1]] == [("Transformer", tmp_path)]
    assert (published.modules, published.normalize, published.prompts, published.files) == ((), False, {}, ())
    assert (published.max_length, published.do_lower_case, published.route) == (None, False, None)
    assert (published.similarity_fn_name, published.include_prompt) == ("cosine", True)


def test_modules_keep_the_order_of_the_list_whatever_their_idx(tmp_path: Path) -> None:
    middle = (Normalize(), Dense(4, 6), "Dropout", Dense(6, 3, activation_function=nn.ReLU()), LayerNorm(3))
    save(tmp_path, "Transformer", Pooling(4), *middle, Normalize())
    listed = json.loads((tmp_path / LISTED).read_text())
    write_json(tmp_path / LISTED, [step | {"idx": 9 - number} for number, step in enumerate(listed)])
    published = read_published(tmp_path)
    assert [*map(str, published.modules)] == ["Normalize", "Dense(4 -> 6, Tanh)", "Dense(6 -> 3, ReLU)", "LayerNorm"]
    assert published.normalize
    folders = ("3_Dense", "5_Dense", "6_LayerNorm")
    assert published.files == tuple(tmp_path / folder / "model.safetensors" for folder in folders)


@pytest.mark.parametrize(
    ("mode", "ours"),
    [
        *((mode, mode) for mode in ("cls", "max", "mean", "weightedmean")),
        *(("mean_sqrt_len_tokens", "mean_sqrt_len"), ("lasttoken", "last"), (("lasttoken", "mean"), "last+mean")),
    ],
)
def test_every_pooling_is_read(tmp_path: Path, mode: Any, ours: str) -> None:
    published = read_published(save(tmp_path, "Transformer", Pooling(4, mode, include_prompt=False)))
    assert (published.pooling, published.include_prompt) == (ours, False)


def test_flags_of_older_files_are_concatenated_in_the_order_of_sentence_transformers(root: Path) -> None:
    modes = ("lasttoken", "weightedmean_tokens", "mean_sqrt_len_tokens", "mean_tokens", "max_tokens", "cls_token")
    for value, ours in ((True, "cls+max+mean+mean_sqrt_len+weightedmean+last"), (False, "mean")):
        write_json(root / "1_Pooling" / "config.json", {f"pooling_mode_{mode}": value for mode in modes})
        assert read_published(root).pooling == ours


def test_weights_of_layers_are_read(tmp_path: Path) -> None:
    weights = nn.Parameter(torch.tensor([1.0, 2.0, 0.5]))
    layers = WeightedLayerPooling(4, num_hidden_layers=4, layer_start=2, layer_weights=weights)
    published = read_published(save(tmp_path, "Transformer", layers, Pooling(4)))
    assert (published.layers, published.layer_weights) == ((2, 3, 4), (1.0, 2.0, 0.5))
    assert published.files == (tmp_path / "1_WeightedLayerPooling" / "model.safetensors",)
    save(tmp_path, "Transformer", layers, Pooling(4, "max"))
    refused(tmp_path, "pooling max after WeightedLayerPooling")


@pytest.mark.parametrize(("weights", "found"), [([1, -1], "sum to 0"), ([1, torch.nan], "'layer_weights' holds NaN")])
def test_weights_of_layers_without_an_average_are_refused(tmp_path: Path, weights: Any, found: str) -> None:
    layers = WeightedLayerPooling(4, 2, 1, nn.Parameter(torch.tensor(weights, dtype=torch.float32)))
    refused(save(tmp_path, "Transformer", layers, Pooling(4)), "model.safetensors", found)


def test_truncated_dimensions_come_after_the_normalisation(root: Path) -> None:
    write_json(root / SETTINGS, {"truncate_dim": 2})
    published = read_published(root)
    assert [*map(str, published.modules)] == ["Dense(4 -> 3, Tanh)", "Normalize", "Truncate(2)"]
    assert not published.normalize


def test_prompts_and_similarity_are_read(root: Path) -> None:
    content = {"prompts": {"query": "query: ", "passage": None, "sts": ""}, "default_prompt_name": "sts", "more": 1}
    for similarity, ours in (("manhattan", "manhattan"), ("dot_score", "dot"), (None, "cosine")):
        write_json(root / SETTINGS, content | {"similarity_fn_name": similarity})
        published = read_published(root)
        assert published.prompts == {"query": "query: ", "passage": "", "sts": ""}
        assert (published.default_prompt_name, published.similarity_fn_name) == ("sts", ours)
    write_json(root / SETTINGS, {"prompts": None, "default_prompt_name": "query"})  # it adds an empty one of that name
    assert (read_published(root).prompts, read_published(root).default_prompt_name) == ({}, None)


@pytest.mark.parametrize("name", [TRANSFORMER, "sentence_xlm-roberta_config.json"])
def test_length_and_casing_are_read_whatever_the_file_is_called(root: Path, name: str) -> None:
    harmless = {
        **{"model_args": {"attn_implementation": "sdpa", "device_map": "auto"}, "config_kwargs": None},
        **{"tokenizer_args": {"padding_side": "left", "model_max_length": 128}},
        **{"transformer_task": "feature-extraction", "module_output_name": "token_embeddings", "unpad_inputs": True},
        **{"modality_config": {"text": STATES, "image": {"method": "get_image_features"}}, "query_length": None},
    }
    write_json(root / name, {"max_seq_length": 128, "do_lower_case": True} | harmless)
    published = read_published(root)
    assert (published.max_length, published.do_lower_case) == (128, True)


POOLING, DENSE, NORM = "1_Pooling/config.json", "2_Dense/config.json", "3_Normalize/config.json"


@pytest.mark.parametrize(
    ("file", "content", "found"),
    [
        (POOLING, {"pooling_mode": "attention"}, "'attention'"),
        (POOLING, {"pooling_mode": ["mean", "mean"]}, "mean+mean"),
        (POOLING, {"pooling_mode": 3}, "'3'"),
        (POOLING, {"pooling_mode_mean_tokens": True, "pooling_mode_attention": True}, "'pooling_mode_attention'"),
        (POOLING, {"pooling_mode": "mean", "temperature": 2}, "'temperature'"),
        (DENSE, {"activation_function": "my_code.Tanh"}, "activation_function 'my_code.Tanh' is not supported"),
        (DENSE, {"activation_function": "torch.nn.modules.activation.ELU"}, "wanted Identity, Tanh"),
        (DENSE, {"dropout": 0.1}, "has the setting 'dropout', which is not supported by sentence-transformers "),
        (DENSE, {"module_input_name": "token_embeddings"}, "module_input_name is not sentence_embedding"),
        (NORM, {"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'"),
        (SETTINGS, {"model_type": "SparseEncoder"}, "model_type is 'SparseEncoder'; wanted SentenceTransformer"),
        (SETTINGS, {"prompts": {"angle": "Say {text}"}}, "prompt 'angle' contains {text}"),
        (SETTINGS, {"prompts": ["query: "]}, "prompts is ['query: ']"),
        (SETTINGS, {"prompts": {"query": 7}}, "prompt 'query' is 7; wanted a text"),
        (SETTINGS, {"default_prompt_name": "sts"}, "default_prompt_name is 'sts', which is not one of its prompts"),
        (SETTINGS, {"default_prompt_name": ["query"]}, "default_prompt_name is"),
        (SETTINGS, {"similarity_fn_name": "hamming"}, "similarity_fn_name is 'hamming'; wanted cosine, dot"),
        *((SETTINGS, {"truncate_dim": value}, "truncate_dim is") for value in (0, "many", 2.5, True)),
        (TRANSFORMER, {"model_args": {"rope_scaling": 2}}, "model_args sets rope_scaling"),
        (TRANSFORMER, {"tokenizer_args": {"do_lower_case": True}}, "tokenizer_args sets do_lower_case"),
        (TRANSFORMER, {"tokenizer_args": {"model_max_length": 64}}, "tokenizer_args sets model_max_length"),
        (TRANSFORMER, {"tokenizer_args": {"truncation_side": "left"}}, "tokenizer_args sets truncation_side"),
        (TRANSFORMER, {"config_kwargs": {"is_causal": False}}, "config_kwargs sets is_causal"),
        (TRANSFORMER, {"model_args": 7}, "model_args is 7"),
        (TRANSFORMER, {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
        (TRANSFORMER, {"modality_config": {"text": {"method": "forward"}}}, "a text's vectors come from"),
        (TRANSFORMER, {"modality_config": {"text": STATES, "message": STATES}}, "modality_config has message"),
        (TRANSFORMER, {"module_output_name": "sentence_embedding"}, "module_output_name is 'sentence_embedding'"),
        (TRANSFORMER, {"processing_kwargs": {"text": 1}}, "text is 1; wanted settings by name"),
        (TRANSFORMER, {"processing_kwargs": {"text": {"padding": True, "max_length": 8}}}, "sets text.max_length,"),
        (TRANSFORMER, {"processing_kwargs": {"text": {"add_special_tokens": False}}}, "sets text.add_special_tokens,"),
        (TRANSFORMER, {"processing_kwargs": {"common": {"truncation": False}}}, "sets common.truncation,"),
        (LISTED, {}, "names no module"),
        *(
            (LISTED, value, "is not a list of modules")
            for value in ("Transformer", [["Transformer"]], [{"path": ""}], 7)
        ),
        (
            LISTED,
            [{"type": "sentence_transformers.models.Transformer", "path": "a/../../x"}],
            "leads out of the folder",
        ),
        (LISTED, [{"type": "sentence_transformers.models.Transformer", "path": "/etc"}], "leads out of the folder"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(root: Path, file: str, content: Any, found: str) -> None:
    if file == DENSE:
        content = {"in_features": 4, "out_features": 3} | content
    refused(root, f"{write_json(root / file, content)}: ", found)


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        (("Transformer", CNN(4, 4, [3]), "Pooling"), "module CNN is not supported"),
        (("Transformer", "Pooling", "Sparkle"), "module Sparkle is not supported"),
        (("Transformer", "Pooling", "my_code.Whiten"), "module 'my_code.Whiten' is not one of sentence-transformers"),
        (("my_code.Transformer", "Pooling"), "module 'my_code.Transformer'"),
        (("Transformer", "sentence_transformers_like.Pooling"), "module 'sentence_transformers_like.Pooling'"),
        (("BoW", "Pooling"), "the first module is BoW; wanted Transformer or StaticEmbedding"),
        (("Transformer", "Normalize"), "has no Pooling"),
        (("Transformer", "Normalize", "Pooling"), "module Pooling is not supported here"),
        (("Transformer", "Pooling", "WeightedLayerPooling"), "module WeightedLayerPooling is not supported here"),
    ],
)
def test_modules_that_cannot_be_reproduced_are_refused(
    tmp_path: Path, modules: tuple[nn.Module | str, ...], found: str
) -> None:
    save(tmp_path, *(Pooling(4) if module == "Pooling" else module for module in modules))
    refused(tmp_path, f"{tmp_path / LISTED}: ", found)


@pytest.mark.parametrize("name", [LISTED, POOLING, SETTINGS, TRANSFORMER])
@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b'"text"', b"[" * 100_000, None])
def test_files_without_settings_are_named(root: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (root / name).write_bytes(content)
    elif name in (LISTED, POOLING):
        (root / name).unlink()
    else:
        return
    refused(root, str(root / name))


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, None])
def test_damaged_and_missing_weights_are_named(root: Path, content: bytes | None) -> None:
    file = root / "2_Dense" / "model.safetensors"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    refused(root, str(file.parent), "copy the model again")


def test_weights_that_differ_from_the_settings_are_refused(root: Path) -> None:
    write_json(root / DENSE, {"in_features": 4, "out_features": 2})
    refused(root, str(root / "2_Dense"), "cannot load this Dense", "copy the model again")


@pytest.fixture
def routes(tmp_path: Path) -> Path:
    """Queries go through a table, documents through another and a Dense; both are normalised."""
    table = [StaticEmbedding(wordpiece(), embedding_dim=4) for _ in range(2)]
    return save(tmp_path / "routes", Router({"query": [table[0]], "document": [table[1], Dense(4, 3)]}), Normalize())


def test_each_route_is_read_as_a_model_of_its_own(routes: Path) -> None:
    query, document = (read_published(routes, route) for route in ("query", "document"))
    assert (query.route, query.steps[0].kind, query.normalize, query.modules) == ("query", "StaticEmbedding", True, ())
    assert [*map(str, document.modules)] == ["Dense(4 -> 3, Tanh)"]
    assert query.steps[0].folder != document.steps[0].folder
    with pytest.raises(UsageError, match="has the routes query, document; export one of them with --route$"):
        read_published(routes)
    with pytest.raises(UsageError, match="has the routes query, document; 'image' is not among them; export one"):
        read_published(routes, "image")


def test_routes_may_follow_the_network_in_a_file_of_an_older_name(tmp_path: Path) -> None:
    save(tmp_path, "Transformer", Pooling(4), "Asym")
    (tmp_path / "2_Asym" / "a_Dense").mkdir()
    Dense(4, 3).save(str(tmp_path / "2_Asym" / "a_Dense"))
    types = {"a_Dense": f"{OLD}Dense"}
    write_json(tmp_path / "2_Asym" / "config.json", {"types": types, "structure": {"doc": ["a_Dense"]}})
    published = read_published(tmp_path)  # a single route need not be named
    assert (published.route, [*map(str, published.modules)]) == ("doc", ["Dense(4 -> 3, Tanh)"])


def test_a_route_of_a_model_without_routes_is_refused(root: Path) -> None:
    refused(root, "route 'query' was asked for", "has no Router; leave --route out", route="query")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"types": {}}, "its structure is not routes with modules of its types"),
        ({"structure": ["a"]}, "its structure is not routes"),
        ({"structure": {"query": []}}, "route 'query' has no module"),
        ({"types": {"../a": f"{OLD}Dense"}, "structure": {"a": ["../a"]}}, "'../a' leads out"),
        ({"types": {"a": "my_code.Transformer"}, "structure": {"a": ["a"]}}, "module 'my_code.Transformer'"),
    ],
)
def test_broken_routes_are_refused(routes: Path, change: dict[str, Any], found: str) -> None:
    save(routes, "Router")
    file = routes / "router_config.json"
    write_json(file, json.loads(file.read_text()) | change)
    refused(routes, found, route="query" if change.get("types") == {} else None)


def test_a_static_embedding_is_a_table_and_pools_by_itself(tmp_path: Path) -> None:
    module = StaticEmbedding(wordpiece(), embedding_dim=4)
    published = read_published(save(tmp_path, module, Normalize()))
    assert (published.steps[0].kind, published.pooling, published.normalize) == ("StaticEmbedding", "mean", True)
    np.testing.assert_array_equal(load_table(published.steps[0].folder), module.embedding.weight.detach().numpy())
    refused(save(tmp_path, module, Pooling(4)), "module Pooling is not supported here")
    write_tensors(tmp_path / "model.safetensors", {"vectors": ROWS})
    with pytest.raises(WhitenError, match="cannot load this StaticEmbedding"):
        load_table(tmp_path)


@pytest.mark.slow
def test_an_adapter_is_not_the_embedding_model_that_its_base_is(checkpoint: Any, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra test-all")
    base = tmp_path / "base"
    base.symlink_to(checkpoint("bert"))
    adapter = save_adapter(base, tmp_path / "adapter", "AutoModel", "FEATURE_EXTRACTION")
    copied = save(tmp_path / "published", "Transformer", Pooling(32), Dense(32, 3))
    for file in base.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    assert resolve(str(copied)).authors
    config = json.loads((adapter / "adapter_config.json").read_text())
    write_json(adapter / "adapter_config.json", config | {"base_model_name_or_path": str(copied)})
    found = resolve(str(adapter))
    assert (found.authors, found.pooling, found.root) == (None, "mean", None)
    assert "to make them as that does, but for Dense(32 -> 3, Tanh), pass --layers -1" in found.notes[0]


def test_an_instructor_of_the_hub_leaves_the_prompt_out_of_the_pooling(hub: Hub, root: Path) -> None:
    """Its files do not say so; sentence-transformers knows it by its name, and warns of others that are named so."""
    (root / "model.safetensors").touch()
    write_json(root / "config.json", {})
    settings = json.loads((root / "1_Pooling" / "config.json").read_text())
    write_json(root / "1_Pooling" / "config.json", {key: settings[key] for key in settings if key != "include_prompt"})
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for name in ("hkunlp/instructor-large", "some/instructor-tuned", "some/other"):
        hub.repositories[name] = files
    known, tuned, other = map(resolve, ("hkunlp/instructor-large", "some/instructor-tuned", "some/other"))
    assert known.authors is not None
    assert tuned.authors is not None
    assert (known.authors.include_prompt, tuned.authors.include_prompt) == (False, True)
    assert (known.notes, other.notes) == ((), ())
    assert 'if it is one, write "include_prompt": false into 1_Pooling/config.json' in tuned.notes[0]


@pytest.mark.parametrize(("modules", "said"), [((), "cls Normalize"), ((Dense(4, 4),), "this needs torch; install it")])
def test_without_torch_only_modules_with_weights_are_missing(
    tmp_path: Path, modules: tuple[nn.Module, ...], said: str
) -> None:
    """Folders of ONNX graphs with a Pooling and a Normalize are exported without torch."""
    write_json(tmp_path / SETTINGS, {"truncate_dim": 2})
    code = (
        "import sys, pathlib\n"
        "for name in ('torch', 'transformers', 'sentence_transformers'): sys.modules[name] = None\n"
        "from whiten_export.sources.published import read_published\n"
        "authors = read_published(pathlib.Path(sys.argv[1]))\n"
        "print(authors.pooling, authors.modules[0])"
    )
    done = python(code, save(tmp_path, "Transformer", Pooling(4, "cls"), *modules, Normalize()))
    assert said in done.stdout + done.stderr
