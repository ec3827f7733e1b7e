"""Texts to token ids, the same on every machine and in every thread."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as _Backend

from whiten_runtime.errors import BundleError


class Tokenizer:
    """A tokenizer that is configured once and never changed again, so that threads can share it.

    Truncation and padding stay switched off in the backend: cutting is done here, after tokenisation, which gives
    each text's true length for free.

    Args:
        path: a `tokenizer.json`.
        max_seq_length: tokens a text may have, special tokens included.

    Raises:
        BundleError: the file is not a tokenizer.
    """

    def __init__(self, path: Path, max_seq_length: int) -> None:
        try:
            self._backend = _Backend.from_file(str(path))
        except Exception as error:  # the backend raises bare Exception
            raise BundleError(f"{path}: not a tokenizer ({error}); export the model again") from None
        self._backend.no_truncation()
        self._backend.no_padding()
        self.max_seq_length = max_seq_length
        self._suffix = _trailing_specials(self._backend)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, special tokens included, not cut.

        Lone surrogates, which no UTF-8 text can hold, are read as U+FFFD.
        """
        encodings = self._backend.encode_batch_fast([_encodable(text) for text in texts])
        return [encoding.ids for encoding in encodings]

    def cut(self, ids: list[int]) -> list[int]:
        """Shorten to `max_seq_length` tokens, keeping the special tokens that end a text."""
        if len(ids) <= self.max_seq_length:
            return ids
        kept = self.max_seq_length - self._suffix
        return ids[:kept] + ids[len(ids) - self._suffix :]


def _encodable(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _trailing_specials(backend: _Backend) -> int:
    mask = backend.encode("a").special_tokens_mask
    return next((count for count, special in enumerate(reversed(mask)) if not special), 0)
