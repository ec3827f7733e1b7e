"""Choose the maximum number of tokens of a text."""

import json
from pathlib import Path

from whiten_export.sources.base import SourceTokenizer
from whiten_runtime.errors import UsageError

USUAL_LENGTH = 512
"""Default maximum number of tokens, as in the papers' models; sentence-transformers' own limit has priority."""


def choose_max_seq_length(
    directory: Path, positions: int | None, tokenizer: SourceTokenizer, wanted: int | None
) -> int:
    """Return the maximum number of tokens of a text: the one asked for, else the checkpoint's, at most its positions.

    If the model has positions and there is no sentence-transformers' limit, the default is at most `USUAL_LENGTH`.

    Args:
        directory: directory of the checkpoint, which may contain sentence-transformers' own limit.
        positions: maximum number of tokens that the model has positions for; None for any number.
        tokenizer: tokenizer of the model.
        wanted: number asked for, or None.

    Raises:
        UsageError: more was asked for than the model has positions, or no more than its special tokens take.
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
