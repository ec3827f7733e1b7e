"""The number of tokens that a text may have."""

import json
from pathlib import Path

from whiten_export.sources.base import SourceTokenizer
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


def _sentence_transformers_length(directory: Path) -> int | None:
    try:
        length = json.loads((directory / "sentence_bert_config.json").read_text("utf-8")).get("max_seq_length")
    except (OSError, ValueError):
        return None
    return length if isinstance(length, int) and length > 0 else None
