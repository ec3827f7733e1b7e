"""Choose the maximum number of tokens of a text."""

from whiten_export.sources.base import SourceTokenizer
from whiten_export.sources.checkpoints.checkpoint import Checkpoint
from whiten_runtime.errors import UsageError

USUAL_LENGTH = 512
"""Default maximum number of tokens, as in the papers' models; that of an embedding model's authors has priority."""


def choose_max_seq_length(
    checkpoint: Checkpoint, positions: int | None, tokenizer: SourceTokenizer, wanted: int | None
) -> int:
    """Return the maximum number of tokens of a text: the one asked for, else the checkpoint's, at most its positions.

    An embedding model's limit is that of its sentence-transformers' files or of the catalogue. If a model has positions
    and no such limit, the default is at most `USUAL_LENGTH`.
    """
    specials = tokenizer.special_tokens
    if wanted is None:
        chosen = _authors_length(checkpoint)
        usual = USUAL_LENGTH if chosen is None and checkpoint.published is None and positions is not None else None
        stated = [chosen, positions, usual] if chosen is not None else [tokenizer.stated_length, positions, usual]
        wanted = min((length for length in stated if length is not None), default=USUAL_LENGTH)
    if positions is not None and wanted > positions:
        raise UsageError(f"max-length is {wanted}, but the model has positions for {positions} tokens")
    if wanted <= specials:
        raise UsageError(f"max-length is {wanted}, but special tokens alone take {specials}; wanted more than that")
    return wanted


def _authors_length(checkpoint: Checkpoint) -> int | None:
    length = checkpoint.published.max_seq_length if checkpoint.published else None
    if length is None and checkpoint.published is None and checkpoint.entry is not None:
        length = checkpoint.entry.max_length
    return length if isinstance(length, int) and length > 0 else None
