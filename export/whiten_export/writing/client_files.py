"""Write the files of a bundle beside its graph: tokenizer, whitening, and what other programs load it from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from whiten_export.sources.describe.tokenizers import SourceTokenizer
from whiten_runtime.bundle.bundle import (
    EXTERNAL_DATA_FILE,
    MODEL_FILE,
    SEPARATE_WEIGHTS,
    TOKENIZER_FILE,
    TRANSFORMERS_JS,
    WHITENING_FILE,
)
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.records import Similarity
from whiten_runtime.inference.options import TEXT, Prompts
from whiten_whitening.maps import WhiteningMap

POOLING_FILE = "1_Pooling/config.json"
CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class Export:
    """Bundle that was written.

    Attributes:
        path: the bundle's directory.
        manifest: manifest of the bundle.
    """

    path: Path
    manifest: Manifest

    @property
    def bytes(self) -> int:
        """Return the size of all files that the manifest lists."""
        return sum(record.bytes for record in self.manifest.files.values())


def write_whitening(stage: Path, fitted: WhiteningMap) -> None:
    """Write `whitening.safetensors`."""
    n = np.asarray([fitted.n_samples], np.int64)
    arrays = {"mean": fitted.mean, "W": fitted.weight, "eigenvalues": fitted.eigenvalues, "n": n}
    arrays |= {"covariance": fitted.covariance, "corpus_mean": fitted.corpus_mean}
    (stage / WHITENING_FILE).write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def write_tokenizer(root: Path, tokenizer: SourceTokenizer, max_seq_length: int) -> None:
    """Write `tokenizer.json` without truncation or padding, and the files that describe it to other programs."""
    content = json.loads(tokenizer.json)
    content["truncation"] = content["padding"] = None
    (root / TOKENIZER_FILE).write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    _write_json(root / "special_tokens_map.json", dict(tokenizer.specials))
    _write_json(
        root / "tokenizer_config.json",
        {
            **tokenizer.specials,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_seq_length,
            "model_input_names": ["input_ids", "attention_mask"],
            "padding_side": "right",
            "truncation_side": tokenizer.truncation_side,
            "clean_up_tokenization_spaces": False,
        },
    )


def write_client_files(
    root: Path, config: Mapping[str, Any], dimension: int, max_seq_length: int, prompts: Prompts, similarity: Similarity
) -> None:
    """Write the files of sentence-transformers and others, which pool the graph's [n, 1, k] output as one token."""
    described = {"max_position_embeddings": max_seq_length} | dict(config)
    separate_weights = (root / EXTERNAL_DATA_FILE).is_file()
    _write_json(root / CONFIG_FILE, described | {TRANSFORMERS_JS: _transformers_js(separate_weights)})
    _write_json(root / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})
    # Other programs know no templates, and would pool a prompt that has to be left out.
    texts = {name: text for name, text in prompts.texts.items() if TEXT not in text} if prompts.pooled else {}
    _write_json(
        root / "config_sentence_transformers.json",
        {
            "prompts": texts,
            "default_prompt_name": prompts.default if prompts.default in texts else None,
            "similarity_fn_name": similarity,
        },
    )
    modules = (("", "Transformer"), ("1_Pooling", "Pooling"))
    _write_json(
        root / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(modules)
        ],
    )
    write_pooling(root, dimension)


def write_pooling(root: Path, dimension: int) -> None:
    """Write the file that gives sentence-transformers the number of dimensions."""
    (root / POOLING_FILE).parent.mkdir(exist_ok=True)
    _write_json(
        root / POOLING_FILE,
        {
            "word_embedding_dimension": dimension,
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )


def rewrite_transformers_js(root: Path, separate_weights: bool) -> None:
    """Tell transformers.js anew whether the graph's weights are a file of their own, if `config.json` is an object."""
    try:
        content = json.loads((root / CONFIG_FILE).read_text("utf-8"))
    except (ValueError, RecursionError):
        return
    if not isinstance(content, dict):
        return
    _write_json(root / CONFIG_FILE, content | {TRANSFORMERS_JS: _transformers_js(separate_weights)})


def _transformers_js(separate_weights: bool) -> dict[str, Any]:
    """Return the settings by which transformers.js finds the graph, of any precision, and the weights beside it.

    "fp32" stands for a name without an ending, such as `_quantized`, which it would look for in a browser.
    """
    weights = {SEPARATE_WEIGHTS: {Path(MODEL_FILE).name: 1}} if separate_weights else {}
    return {"dtype": "fp32"} | weights


def _write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    path.write_bytes(text.encode())  # with the same ends of lines on every system
