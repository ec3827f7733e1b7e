"""The files from which a bundle's tokenizer, and other programs', are made."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whiten_export.sources.base import SourceTokenizer
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.errors import UsageError

USUAL_LENGTH = 512
"""Tokens of a text by default, at most: what the papers' models take. sentence-transformers' own limit counts more."""


def choose_max_seq_length(
    directory: Path, positions: int | None, tokenizer: SourceTokenizer, wanted: int | None
) -> int:
    """Tokens a text may have: what was asked for, else what the checkpoint says, never more than it has positions.

    Where it has positions, and sentence-transformers' limit is not there to say otherwise, `USUAL_LENGTH` is the most
    that nobody asked for.

    Args:
        directory: the checkpoint, which may carry sentence-transformers' own limit.
        positions: tokens that the model has positions for; None for any number.
        tokenizer: what the model's tokenizer says.
        wanted: what was asked for, or None.

    Raises:
        UsageError: more was asked for than the model has positions, or less than its special tokens take.
    """
    specials = tokenizer.special_tokens
    if wanted is None:
        chosen = _sentence_transformers_length(directory)
        usual = USUAL_LENGTH if chosen is None and positions is not None else None
        stated = [chosen, tokenizer.stated_length, positions, usual]
        wanted = min((length for length in stated if length is not None), default=USUAL_LENGTH)
    if positions is not None and wanted > positions:
        raise UsageError(f"max-length is {wanted}, but the model has positions for {positions} tokens")
    if wanted <= specials:
        raise UsageError(f"max-length is {wanted}, but special tokens alone take {specials}; wanted more than that")
    return wanted


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
            "truncation_side": "right",
            "clean_up_tokenization_spaces": False,
        },
    )


def write_client_files(root: Path, config: Mapping[str, Any], dimension: int, max_seq_length: int) -> None:
    """Write what sentence-transformers and others need: the graph's [n, 1, k] output is one token to be pooled."""
    _write_json(root / "config.json", {"max_position_embeddings": max_seq_length} | dict(config))
    _write_json(root / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})
    _write_json(
        root / "config_sentence_transformers.json",
        {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
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
    """Write the file that tells sentence-transformers how wide vectors are."""
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


def _sentence_transformers_length(directory: Path) -> int | None:
    try:
        length = json.loads((directory / "sentence_bert_config.json").read_text("utf-8")).get("max_seq_length")
    except (OSError, ValueError):
        return None
    return length if isinstance(length, int) and length > 0 else None


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")
