"""Test modules that few published models have: each in a folder that sentence-transformers itself writes, beside it.

Folders that are refused are in tests/export/sources/test_published.py.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules import Dense, Router, Transformer
from sentence_transformers.sentence_transformer.modules import (
    Dropout,
    LayerNorm,
    Normalize,
    Pooling,
    WeightedLayerPooling,
)
from torch import nn

from support.cli import ok, refused
from support.families import DECODERS, FAMILIES, MAX_LENGTH, WIDENED_LAYERS, WIDTH
from support.once import once
from support.published import SIZE, TEXTS, peer, save, save_published, static, transformer
from whiten import Encoder, UsageError

pytestmark = pytest.mark.slow


def as_version_2(directory: Path) -> Path:
    """Give a folder the layout of sentence-transformers 2: old class paths, flags of poolings, pickled weights."""
    modules = _read(directory / "modules.json")
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        module["type"] = f"sentence_transformers.models.{kind}"
        folder = directory / module["path"]
        if kind == "Pooling":
            settings = _read(folder / "config.json")
            flags = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
            pooled = {f"pooling_mode_{flag}": mode == settings["pooling_mode"] for mode, flag in flags.items()}
            _write(folder / "config.json", {"word_embedding_dimension": settings["embedding_dimension"]} | pooled)
        if kind == "Dense":
            torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
            (folder / "model.safetensors").unlink()
    _write(directory / "modules.json", modules)
    _write(directory / "sentence_bert_config.json", {"max_seq_length": MAX_LENGTH // 2, "do_lower_case": False})
    (directory / "config_sentence_transformers.json").unlink()
    return directory


def _mean() -> Pooling:
    return Pooling(SIZE, "mean")


def _layer_norm() -> LayerNorm:
    made = LayerNorm(SIZE)
    for parameter in made.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return made


def _weighted_layers() -> list[nn.Module]:
    first = transformer("bert", config_kwargs={"output_hidden_states": True})
    weights = nn.Parameter(torch.rand(WIDENED_LAYERS) + 0.1)
    return [first, WeightedLayerPooling(SIZE, WIDENED_LAYERS, 1, weights), _mean()]


def _model2vec(directory: Path) -> None:
    """Write a table with the names and settings of model2vec."""
    save([static(), Normalize()], directory)
    file = directory / "model.safetensors"
    save_file({"embeddings": load_file(file)["embedding.weight"].clone()}, file)
    _write(directory / "config.json", {"model_type": "model2vec", "normalize": True, "hidden_dim": SIZE})


def _asym(directory: Path) -> None:
    """Write a Router as version 2 did, when its class was Asym."""
    routes: dict[str, list[nn.Module]] = {"query": [Dense(SIZE, SIZE)], "doc": [Dense(SIZE, SIZE // 2)]}
    save([transformer("bert"), _mean(), Router(routes)], directory)
    (folder,) = directory.glob("*_Router")
    settings = _read(folder / "router_config.json")
    types = dict.fromkeys(settings["types"], "sentence_transformers.models.Dense")
    parameters = {"allow_empty_key": True}
    (folder / "router_config.json").unlink()
    _write(folder / "config.json", settings | {"types": types, "parameters": parameters})
    as_version_2(directory)
    modules = (directory / "modules.json").read_text("utf-8")
    (directory / "modules.json").write_text(modules.replace("models.Router", "models.Asym"), "utf-8")


def _dense(function: nn.Module, width: int = WIDTH, residual: bool = False) -> Dense:
    added = {"use_residual": True} if residual else {}  # sentence-transformers before 6 does not know it
    return Dense(SIZE, width, activation_function=function, **added)


def _router(query: list[nn.Module], document: list[nn.Module]) -> Router:
    return Router({"query": query, "document": document}, default_route="document")


def _shared() -> list[nn.Module]:
    network = transformer("bert")
    return [_router([network, Pooling(SIZE, "cls")], [network, _mean()]), Normalize()]


def _padded_gpt2() -> Transformer:
    end = "<|endoftext|>"
    return transformer(replace(FAMILIES["gpt2"], tokenizer_config={"pad_token": end, "eos_token": end}))


def _left(pooling: str, **options: bool) -> list[nn.Module]:
    """Return a decoder whose tokenizer pads on the left."""
    return [transformer(DECODERS["qwen3"]), Pooling(SIZE, pooling, **options)]


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), "utf-8")


def _bert(*rest: nn.Module, **options: Any) -> list[nn.Module]:
    """Return a BERT, its mean and what follows."""
    return [transformer("bert", **options), _mean(), *rest]


RARE: Mapping[str, Callable[[Path], object]] = {
    # Poolings and what follows them.
    "concatenated": lambda path: save([transformer("bert"), Pooling(SIZE, ("cls", "mean", "max"))], path),
    "max": lambda path: save([transformer("bert"), Pooling(SIZE, "max"), Normalize()], path),
    "sqrt": lambda path: save([transformer("bert"), Pooling(SIZE, "mean_sqrt_len_tokens")], path),
    "weighted": lambda path: save([_padded_gpt2(), Pooling(SIZE, "weightedmean")], path),
    "weighted-layers": lambda path: save(_weighted_layers(), path),
    "layer-norm": lambda path: save(
        _bert(_layer_norm(), _dense(nn.ReLU()), Normalize(), Dropout(0.1), Dense(WIDTH, SIZE)), path
    ),
    "residual": lambda path: save(_bert(_dense(nn.GELU(), SIZE, True), _dense(nn.Tanh(), WIDTH, True)), path),
    # Routes.
    "router": lambda path: save(
        [_router([transformer("bert"), Pooling(SIZE, "cls"), Normalize()], _bert(Dense(SIZE, WIDTH)))],
        path,
        prompts={"query": "query: ", "document": ""},
    ),
    "router-static": lambda path: save([_router([static()], _bert()), Normalize()], path),
    "router-shared": lambda path: save(_shared(), path),
    "router-tail": lambda path: save(
        _bert(_router([Dense(SIZE, SIZE)], [_dense(nn.Identity(), SIZE)]), Normalize()), path
    ),
    # Layouts of earlier versions, and of model2vec.
    "asym": _asym,
    "old-labse": lambda path: as_version_2(save_published("labse", path)),
    "model2vec": _model2vec,
    # Tokenizers, prompts, numbers.
    "lower-case": lambda path: save([transformer("spanbert", do_lower_case=True), _mean()], path),
    "truncation-left": lambda path: save(_bert(processor_kwargs={"truncation_side": "left"}), path),
    "default-prompt": lambda path: save(
        _bert(Normalize()),
        path,
        prompts={"query": "query: ", "passage": "passage: "},
        default_prompt_name="passage",
        similarity_fn_name="dot",
    ),
    "prompt-left": lambda path: save(_left("mean", include_prompt=False), path, prompts={"query": "Query: "}),
    "half": lambda path: save(_bert(Normalize(), dtype=torch.float16), path),
    "bfloat16": lambda path: save([transformer(DECODERS["qwen3"], torch.bfloat16), Pooling(SIZE, "lasttoken")], path),
}

ROUTES = dict.fromkeys(("router", "router-static", "router-shared", "router-tail"), ("query", "document"))
ROUTES["asym"] = ("query", "doc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return lambda name: once(tmp_path_factory, f"rare-{name}", lambda path: RARE[name](path))


LACKING = set() if "use_residual" in Dense.config_keys else {"residual"}


@pytest.mark.parametrize("name", sorted(RARE.keys() - ROUTES.keys() - LACKING))
def test_folder_gives_the_vectors_of_sentence_transformers(
    folder: Callable[[str], Path], name: str, check_export: Callable[..., None], tmp_path: Path
) -> None:
    check_export(folder(name), tmp_path / "bundle", TEXTS)


@pytest.mark.parametrize("name", ROUTES)
def test_each_route_of_a_router_is_a_bundle(
    folder: Callable[[str], Path], name: str, check_published: Callable[..., None], tmp_path: Path
) -> None:
    for route in ROUTES[name]:
        ok("export", folder(name), "--route", route, "--out", tmp_path / route)
        with Encoder(tmp_path / route) as encoder:
            assert encoder.manifest.route == route
            check_published(encoder, peer(folder(name)), TEXTS, task=route)
            if route == "query":
                with pytest.raises(UsageError, match="--route document"):
                    encoder.encode_document("a")
    for wrong in ((), ("--route", "image")):
        assert "has the routes" in refused("export", folder(name), *wrong, "--out", tmp_path / "other")
