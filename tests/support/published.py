"""Small random folders of embedding models, which sentence-transformers itself writes.

`save_published` makes that of an entry of the catalogue, with its kind of network and tokenizer, its modules and its
prompts; `save` writes one of any modules.
"""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import (
    Normalize,
    Pooling,
    StaticEmbedding,
)
from torch import nn

from support.checkpoints import save_checkpoint
from support.families import DECODERS, FAMILIES, MAX_LENGTH, WIDENED, WIDTH, Family
from support.vocabularies import wordpiece
from whiten_models.catalogue import Entry, find

SIZE = WIDENED * WIDTH
TEXTS = [
    "The cat sits on the mat.",
    "Interest rates rose again in March, the bank said.",
    "a",
    "  two blanks before, two after  ",
    "今日天気 über den SEE",
    "Wind and rain, words and words. " * 40,
]
_MODES = {"last": "lasttoken", "mean_sqrt_len": "mean_sqrt_len_tokens"}
_ACTIVATIONS = {"Tanh": nn.Tanh(), "": nn.Identity()}
_DENSE = {
    "labse": ("Dense(768->768, Tanh)",),
    "embeddinggemma": ("Dense(768->3072)", "Dense(3072->768)"),
    "distiluse": ("Dense(768->512, Tanh)",),
    "gtr-base": ("Dense(768->768)",),
    "sentence-t5": ("Dense(768->768)",),
    "instructor": ("Dense(768->768)",),
}
"""Dense modules by the entries that have them; their networks are 768 wide."""

_CASED = {"labse", "distiluse"}
"""Entries with a cased WordPiece."""

_SENTENCEPIECE = {"multilingual-e5-small", "multilingual-minilm"}
"""Entries of BERT's architecture with the tokenizer of XLM-RoBERTa."""


def save_published(name: str, directory: Path) -> Path:
    """Write the folder of an entry of the catalogue, and return the directory."""
    entry = find(name)
    assert entry is not None
    return save(_modules(entry), directory, prompts=dict(entry.prompts))


def modules_of(entry: Entry) -> tuple[str, ...]:
    """Return the modules of an entry's folder after the network."""
    first = "StaticEmbedding" if entry.source == "static" else f"Pooling({entry.pooling})"
    return first, *_DENSE.get(entry.name, ()), *(["Normalize"] if entry.normalize else [])


def save(modules: list[nn.Module], directory: Path, **options: Any) -> Path:
    """Write a model of modules in their order, and return the directory."""
    model = SentenceTransformer(modules=modules, device="cpu", **options)
    model.save(str(directory), create_model_card=False)
    return directory


def peer(directory: Path) -> SentenceTransformer:
    """Open a folder in sentence-transformers, in float32."""
    return SentenceTransformer(str(directory), device="cpu", model_kwargs={"dtype": torch.float32}).float().eval()


def transformer(family: str | Family, dtype: torch.dtype = torch.float32, **options: Any) -> Transformer:
    """Return a random network with its tokenizer; options are those of the class."""
    with TemporaryDirectory() as folder:
        save_checkpoint(family, Path(folder), widened=WIDENED)
        length = options.pop("max_seq_length", MAX_LENGTH // 2)
        loaded = Transformer(folder, model_kwargs={"dtype": dtype}, max_seq_length=length, **options)
        loaded.load_state_dict({name: tensor.clone() for name, tensor in loaded.state_dict().items()}, assign=True)
        return loaded


def static(width: int = SIZE) -> StaticEmbedding:
    """Return a random vector for each word of BERT's vocabulary."""
    torch.manual_seed(1)
    return StaticEmbedding(wordpiece(), embedding_dim=width)


def _modules(entry: Entry) -> list[nn.Module]:
    """Return the modules of an entry, with small widths."""
    made: list[nn.Module] = []
    for text in ("Transformer", *modules_of(entry)) if entry.model_type else modules_of(entry):
        kind, settings = re.fullmatch(r"(\w+)(?:\((.*)\))?", text).groups()  # type: ignore[union-attr]
        if kind == "Transformer":
            made.append(transformer(_family(entry)))
        elif kind == "Pooling":
            made.append(Pooling(SIZE, _MODES.get(settings, settings), include_prompt=entry.name != "instructor"))
        elif kind == "Dense":
            sizes, _, activation = settings.partition(", ")
            before, after = (int(size) * SIZE // 768 for size in sizes.split("->"))
            made.append(Dense(before, after, bias=bool(activation), activation_function=_ACTIVATIONS[activation]))
        else:
            made.append({"Normalize": Normalize, "StaticEmbedding": static}[kind]())
    return made


def _family(entry: Entry) -> Family:
    """Return the small network of an entry's architecture, with its kind of tokenizer."""
    family = (FAMILIES | DECODERS)[entry.model_type]
    if entry.name in _CASED:
        cased = partial(family.vocabulary, lowercase=False)
        return replace(family, vocabulary=cased, tokenizer_config={"do_lower_case": False})
    if entry.name in _SENTENCEPIECE:
        sentencepiece = FAMILIES["xlm-roberta"].vocabulary
        return replace(
            family,
            vocabulary=sentencepiece,
            ids={"pad_token_id": "<pad>"},
            tokenizer_config={"tokenizer_class": "XLMRobertaTokenizer"},
        )
    return family
