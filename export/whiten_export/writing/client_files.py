"""Write the tokenizer of a bundle, and the files from which other programs load it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whiten_export.sources.base import SourceTokenizer
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.manifest import Similarity


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


@dataclass(frozen=True)
class ClientSettings:
    """Holds what other programs need to know of a bundle.

    Attributes:
        dimension: number of coordinates of a vector.
        max_seq_length: maximum number of tokens of a text.
        prompts: prompts that are put before a text, by name.
        default_prompt_name: name of the prompt that texts get if none is asked for.
        similarity_fn_name: similarity of two vectors.
    """

    dimension: int
    max_seq_length: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity_fn_name: Similarity = "cosine"


def write_client_files(root: Path, config: Mapping[str, Any], settings: ClientSettings) -> None:
    """Write the files of sentence-transformers and others, which pool the graph's [n, 1, k] output as one token."""
    length = settings.max_seq_length
    _write_json(root / "config.json", {"max_position_embeddings": length} | dict(config))
    _write_json(root / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
    _write_json(
        root / "config_sentence_transformers.json",
        {
            "prompts": dict(settings.prompts),
            "default_prompt_name": settings.default_prompt_name,
            "similarity_fn_name": settings.similarity_fn_name,
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
    write_pooling(root, settings.dimension)


def write_pooling(root: Path, dimension: int) -> None:
    """Write the file that gives sentence-transformers the number of dimensions."""
    (root / "1_Pooling").mkdir(exist_ok=True)
    _write_json(
        root / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": dimension,
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")
