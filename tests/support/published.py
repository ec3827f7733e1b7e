"""Small random folders of embedding models, which sentence-transformers itself writes.

`save_published` makes one: that of an entry of the catalogue, with its kind of network and tokenizer, its modules and
its prompts, or one of `RARE`, each with something that few published models have.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import (
    CNN,
    Dropout,
    LayerNorm,
    Pooling,
    StaticEmbedding,
    WeightedLayerPooling,
)
from torch import nn
from transformers.activations import NewGELUActivation

from support.checkpoints import DECODERS, FAMILIES, Family, save_checkpoint
from support.sizes import LAYERS, MAX_LENGTH, WIDTH
from support.vocabularies import wordpiece
from whiten_models.catalogue import Entry, find

SIZE = 2 * WIDTH
_IDENTITY = nn.Identity()
_MODES = {"last": "lasttoken", "mean_sqrt_len": "mean_sqrt_len_tokens"}
_ACTIVATIONS = {"Tanh": nn.Tanh(), "": _IDENTITY}
_NETWORKS = {"jina-v3": "jina_embeddings_v3"}
"""Entries whose network transformers knows by another name than their own code does."""


def save_published(name: str, directory: Path) -> Path:
    """Write the folder of an entry of the catalogue or of `RARE`, and return the directory."""
    entry = find(name)
    if entry is None:
        RARE[name](directory)
        return directory
    return save(_modules(entry), directory, prompts=dict(entry.prompts))


def save(modules: list[nn.Module], directory: Path, **options: Any) -> Path:
    """Write a model of modules in their order, and return the directory."""
    model = SentenceTransformer(modules=modules, device="cpu", **options)
    model.save(str(directory), create_model_card=False)
    return directory


def transformer(family: str | Family, dtype: torch.dtype = torch.float32, **options: Any) -> Transformer:
    """Return a random network with its tokenizer; options are those of the class."""
    with TemporaryDirectory() as folder:
        save_checkpoint(family, Path(folder), widened=2)
        length = options.pop("max_seq_length", MAX_LENGTH // 2)
        loaded = Transformer(folder, model_kwargs={"dtype": dtype}, max_seq_length=length, **options)
        loaded.load_state_dict({name: tensor.clone() for name, tensor in loaded.state_dict().items()}, assign=True)
        return loaded


def static(width: int = SIZE) -> StaticEmbedding:
    """Return a random vector for each word of BERT's vocabulary."""
    torch.manual_seed(1)
    return StaticEmbedding(wordpiece(), embedding_dim=width)


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


def _modules(entry: Entry) -> list[nn.Module]:
    """Return the modules of an entry, from what the catalogue writes of them, with small widths."""
    made: list[nn.Module] = []
    for text in ("Transformer", *entry.modules) if entry.model_type else entry.modules:
        kind, settings = re.fullmatch(r"(\w+)(?:\((.*)\))?", text).groups()  # type: ignore[union-attr]
        if kind == "Transformer":
            made.append(transformer(_family(entry)))
        elif kind == "Pooling":
            made.append(Pooling(SIZE, _MODES.get(settings, settings), include_prompt=entry.name != "instructor"))
        elif kind == "Dense":
            sizes, _, activation = settings.partition(", ")
            before, after = (int(size) * SIZE // entry.width for size in sizes.split("->"))
            made.append(Dense(before, after, bias=bool(activation), activation_function=_ACTIVATIONS[activation]))
        else:
            made.append({"Normalize": Normalize, "StaticEmbedding": static}[kind]())
    return made


def _family(entry: Entry) -> Family:
    """Return the small network of an entry's architecture, with its kind of tokenizer."""
    family = (FAMILIES | DECODERS)[_NETWORKS.get(entry.name, entry.model_type)]
    if entry.tokenizer.kind == "WordPiece" and not entry.tokenizer.lowercase:
        cased = partial(family.vocabulary, lowercase=False)
        return replace(family, vocabulary=cased, tokenizer_config={"do_lower_case": False})
    if entry.tokenizer.kind == "SentencePiece unigram" and family.model_type == "bert":
        sentencepiece = FAMILIES["xlm-roberta"].vocabulary
        return replace(
            family,
            vocabulary=sentencepiece,
            ids={"pad_token_id": "<pad>"},
            tokenizer_config={"tokenizer_class": "XLMRobertaTokenizer"},
        )
    return family


def _mean() -> Pooling:
    return Pooling(SIZE, "mean")


def _layer_norm() -> LayerNorm:
    made = LayerNorm(SIZE)
    for parameter in made.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return made


def _weighted_layers() -> list[nn.Module]:
    first = transformer("bert", config_kwargs={"output_hidden_states": True})
    weights = nn.Parameter(torch.rand(LAYERS) + 0.1)
    return [first, WeightedLayerPooling(SIZE, LAYERS, 1, weights), _mean()]


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


def _unknown(directory: Path) -> None:
    """Write a folder whose last module is somebody's own code."""
    save([transformer("bert"), _mean(), Normalize()], directory)
    modules = _read(directory / "modules.json")
    modules[-1]["type"] = "my_code.Whiten"
    _write(directory / "modules.json", modules)


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
        _bert(
            _layer_norm(),
            Dense(SIZE, WIDTH, activation_function=nn.ReLU()),
            Normalize(),
            Dropout(0.1),
            Dense(WIDTH, SIZE),
        ),
        path,
    ),
    "residual": lambda path: save(
        _bert(
            Dense(SIZE, SIZE, activation_function=nn.GELU(), use_residual=True), Dense(SIZE, WIDTH, use_residual=True)
        ),
        path,
    ),
    # Routes.
    "router": lambda path: save(
        [_router([transformer("bert"), Pooling(SIZE, "cls"), Normalize()], _bert(Dense(SIZE, WIDTH)))],
        path,
        prompts={"query": "query: ", "document": ""},
    ),
    "router-static": lambda path: save([_router([static()], _bert()), Normalize()], path),
    "router-shared": lambda path: save(_shared(), path),
    "router-tail": lambda path: save(
        _bert(_router([Dense(SIZE, SIZE)], [Dense(SIZE, SIZE, activation_function=_IDENTITY)]), Normalize()), path
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
    # What is refused.
    "cnn": lambda path: save([transformer("bert"), CNN(SIZE, SIZE, [3]), _mean()], path),
    "dense-custom-activation": lambda path: save(
        _bert(Dense(SIZE, SIZE, activation_function=NewGELUActivation())), path
    ),
    "dense-of-tokens": lambda path: save(
        [transformer("bert"), Dense(SIZE, SIZE, module_input_name="token_embeddings"), _mean()], path
    ),
    "unknown-module": _unknown,
}
