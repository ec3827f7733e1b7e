"""Run a client in their environment: NAME TEXTS.json OUT.npz BUNDLE..., or hidden_states CHECKPOINT OUT."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def sentence_transformers(bundle: str, texts: list[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(bundle, backend="onnx", device="cpu", local_files_only=True)
    return model.encode(texts)


def fastembed(bundle: str, texts: list[str]) -> np.ndarray:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    manifest = json.loads((Path(bundle) / "whiten.json").read_text("utf-8"))
    name = f"whiten/{Path(bundle).name}"
    TextEmbedding.add_custom_model(
        model=name,
        pooling=PoolingType.DISABLED,
        normalization=False,
        sources=ModelSource(hf=name),
        dim=manifest["dimension"],
        model_file="onnx/model.onnx",
    )
    model = TextEmbedding(name, specific_model_path=bundle)
    return np.stack(list(model.embed(texts)))


def optimum(bundle: str, texts: list[str]) -> np.ndarray:
    from optimum.onnxruntime import ORTModelForFeatureExtraction
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundle, local_files_only=True)
    model = ORTModelForFeatureExtraction.from_pretrained(
        bundle, subfolder="onnx", file_name="model.onnx", local_files_only=True
    )
    found = []
    for start in range(0, len(texts), 16):
        batch = tokenizer(texts[start : start + 16], padding=True, truncation=True, return_tensors="pt")
        found.append(model(**batch).last_hidden_state[:, 0].numpy())
    return np.concatenate(found)


def bundle_transformer(bundle: str, texts: list[str], out: str) -> dict[str, Any]:
    from sentence_transformers import SentenceTransformer

    from whiten.integrations.sentence_transformers import load

    folder = str(Path(out).with_name("saved"))
    model = load(bundle)
    model.save_pretrained(folder)
    again = SentenceTransformer(folder, device="cpu", local_files_only=True)
    return {"opened": model.encode(texts), "saved": again.encode(texts)}


def hidden_states(checkpoint: str, out: str) -> None:
    """Export a BERT with optimum, with all hidden states as outputs."""
    from optimum.exporters.onnx import main_export
    from optimum.exporters.onnx.model_configs import BertOnnxConfig
    from transformers import AutoConfig

    class WithHiddenStates(BertOnnxConfig):
        @property
        def outputs(self) -> dict[str, dict[int, str]]:
            axes = {0: "batch_size", 1: "sequence_length"}
            names = (f"hidden_states.{layer}" for layer in range(self._config.num_hidden_layers + 1))
            return {"last_hidden_state": axes} | dict.fromkeys(names, axes)

    config = WithHiddenStates(AutoConfig.from_pretrained(checkpoint), task="feature-extraction")
    main_export(
        checkpoint,
        out,
        task="feature-extraction",
        custom_onnx_configs={"model": config},
        fn_get_submodels=lambda model: {"model": model},
        model_kwargs={"output_hidden_states": True},
        local_files_only=True,
    )


PROGRAMS = (sentence_transformers, fastembed, optimum)

if __name__ == "__main__":
    name, first, out, *bundles = sys.argv[1:]
    if name == "hidden_states":
        hidden_states(first, out)
    else:
        texts = json.loads(Path(first).read_text("utf-8"))
        if name == "bundle_transformer":
            np.savez(out, **bundle_transformer(bundles[0], texts, out))
        else:
            (program,) = (one for one in PROGRAMS if one.__name__ == name)
            np.savez(out, **{Path(bundle).name: program(bundle, texts) for bundle in bundles})
