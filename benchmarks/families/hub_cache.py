"""Write what the catalogue's entries name into the hub's cache: small networks and adapters with random weights."""

import zipfile
from pathlib import Path

import numpy as np
import peft
import torch
import transformers

from benchmarks.families import CACHE
from support.checkpoints import save_checkpoint
from support.corpus import sentences
from whiten_models.catalogue import Entry

COMMIT = "1234567890" * 4

WIDENED = 4
"""Factor by which the networks are wider than those of the tests."""


def snapshot(hub_id: str) -> Path:
    """Return a repository's folder in the hub's cache."""
    repository = CACHE / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return repository / "snapshots" / COMMIT


def prepare(entry: Entry) -> None:
    """Put what the entry needs into the cache."""
    if entry.source == "words":
        folder = snapshot(entry.checkpoint)
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / str(entry.file), "w") as archive:
            archive.writestr("words.txt", word_vectors())
    elif entry.adapter_of is not None:
        save_adapter(entry)
    elif entry.source == "transformers" and entry.package is None:
        family = "spanbert" if entry.tokenizer.lowercase_override is False else entry.model_type
        save_checkpoint(family, snapshot(entry.checkpoint), WIDENED)


def word_vectors() -> str:
    """Return lines of random vectors for the words of the sentences."""
    words = list(dict.fromkeys(word for sentence in sentences(2000) for word in sentence.lower().split()))
    rows = np.random.default_rng(0).normal(size=(len(words), WIDENED * 32))
    return "".join(f"{word} {' '.join(f'{x:.4f}' for x in row)}\n" for word, row in zip(words, rows, strict=True))


def save_adapter(entry: Entry) -> None:
    """Save an adapter with random weights, and its base network if it is not there."""
    base = snapshot(str(entry.adapter_of))
    if not base.exists():
        save_checkpoint(entry.model_type, base, WIDENED)
    network = transformers.AutoModel.from_pretrained(base)
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4, task_type="FEATURE_EXTRACTION")
    adapted = peft.get_peft_model(network, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    adapted.peft_config["default"].base_model_name_or_path = entry.adapter_of
    adapted.save_pretrained(str(snapshot(entry.checkpoint)))
