"""The files from which a bundle's tokenizer, and other programs', are made."""

import json
from pathlib import Path
from typing import Any

from whiten_export.checkpoint import Checkpoint
from whiten_export.families import usable_positions
from whiten_runtime.bundle import TOKENIZER_FILE
from whiten_runtime.errors import UsageError, WhitenError

_UNSET_LENGTH = 1_000_000
"""transformers writes a number far above this where a tokenizer has no limit."""

_DEFAULT_LENGTH = 512


def choose_max_seq_length(checkpoint: Checkpoint, config: Any, tokenizer: Any, wanted: int | None) -> int:
    """Tokens a text may have: what was asked for, else what the checkpoint says, never more than it has positions.

    Raises:
        UsageError: more was asked for than the model has positions, or less than its special tokens take.
    """
    positions = usable_positions(config)
    specials = tokenizer.num_special_tokens_to_add()
    if wanted is None:
        stated = [_sentence_transformers_length(checkpoint.directory), tokenizer.model_max_length, positions]
        known = [length for length in stated if length is not None and length < _UNSET_LENGTH]
        wanted = min(known, default=_DEFAULT_LENGTH)
    if positions is not None and wanted > positions:
        raise UsageError(f"max-length is {wanted}, but the model has positions for {positions} tokens")
    if wanted <= specials:
        raise UsageError(f"max-length is {wanted}, but special tokens alone take {specials}; wanted more than that")
    return wanted


def write_tokenizer(root: Path, checkpoint: Checkpoint, tokenizer: Any, max_seq_length: int) -> None:
    """Write `tokenizer.json` without truncation or padding, and the files that describe it to other programs.

    Raises:
        WhitenError: the checkpoint has only a tokenizer that cannot be written as `tokenizer.json`.
    """
    own = checkpoint.directory / TOKENIZER_FILE
    if own.is_file():
        content = json.loads(own.read_text("utf-8"))
    elif getattr(tokenizer, "is_fast", False):
        content = json.loads(tokenizer.backend_tokenizer.to_str())
    else:
        raise WhitenError(
            f"'{checkpoint.model}' has only a {type(tokenizer).__name__}, which cannot be written as {TOKENIZER_FILE}"
        )
    content["truncation"] = content["padding"] = None
    specials = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    (root / TOKENIZER_FILE).write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    _write_json(root / "special_tokens_map.json", specials)
    _write_json(
        root / "tokenizer_config.json",
        {
            **specials,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_seq_length,
            "model_input_names": ["input_ids", "attention_mask"],
            "padding_side": "right",
            "truncation_side": "right",
            "clean_up_tokenization_spaces": False,
        },
    )


def write_client_files(root: Path, config: Any, dimension: int, max_seq_length: int) -> None:
    """Write what sentence-transformers and others need: the graph's [n, 1, k] output is one token to be pooled."""
    described = {
        "architectures": list(config.architectures or [type(config).__name__.replace("Config", "Model")]),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "max_position_embeddings": getattr(config, "max_position_embeddings", max_seq_length),
    }
    kept = {key: value for key, value in config.to_dict().items() if key not in ("_name_or_path", "auto_map")}
    _write_json(root / "config.json", kept | described)
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
    (root / "1_Pooling").mkdir()
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
