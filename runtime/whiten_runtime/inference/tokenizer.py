"""Tokenise texts, with the same result on every machine and in every thread."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer as _Backend

from whiten_runtime.bundle.manifest import Side
from whiten_runtime.checks import encodable
from whiten_runtime.errors import BundleError
from whiten_runtime.inference.chunked import ChunkedTokenizer, is_chunked

_AT_ONCE = 512
"""Texts that the backend gets at once: its encodings take many times the memory of their ids."""


class Tokenizer:
    """Tokenises texts with a tokenizer that is configured once and never changed again, so that threads can share it.

    Truncation and padding stay off in the backend. `cut` truncates after tokenisation, so each text's full length is
    known without extra work.

    Args:
        path: a `tokenizer.json`.
        max_seq_length: maximum number of tokens of a text, special tokens included.
        truncation_side: side from which tokens are removed from texts that are too long.

    Raises:
        BundleError: the file is not a tokenizer, or its special tokens leave no room for a text.
    """

    def __init__(self, path: Path, max_seq_length: int, truncation_side: Side = "right") -> None:
        with _typed_errors(f"{path}: not a tokenizer"):
            self._backend = _Backend.from_file(str(path))
            self._backend.no_truncation()
            self._backend.no_padding()
            specials = self._backend.num_special_tokens_to_add(False)
            self._prefix, self._suffix = _added_tokens(self._backend)
            self._chunked = _chunked(self._backend, self._prefix, self._suffix)
        if max_seq_length <= specials:
            raise BundleError(
                f"{path}: adds {specials} special tokens to a text, but the bundle takes {max_seq_length} in all; "
                "export the model again"
            )
        self.max_seq_length = max_seq_length
        self._truncation_side = truncation_side

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, special tokens included, not truncated.

        Raises:
            BundleError: the tokenizer fails on a text.
        """
        ids: list[list[int]] = []
        with _typed_errors("the bundle's tokenizer fails"):
            for start in range(0, len(texts), _AT_ONCE):
                part = [encodable(text) for text in texts[start : start + _AT_ONCE]]
                if self._chunked is not None:
                    ids.extend(self._chunked.tokenize(part))
                else:
                    ids.extend(encoding.ids for encoding in self._backend.encode_batch_fast(part))
        return ids

    def cut(self, ids: list[int]) -> list[int]:
        """Truncate to `max_seq_length` tokens, keeping the special tokens that begin and end a text."""
        if len(ids) <= self.max_seq_length:
            return ids
        if self._truncation_side == "left":
            return ids[: self._prefix] + ids[len(ids) - (self.max_seq_length - self._prefix) :]
        kept = self.max_seq_length - self._suffix
        return ids[:kept] + ids[len(ids) - self._suffix :]

    @property
    def special_tokens(self) -> tuple[int, int]:
        """Return the number of special tokens before every text, and of those after it."""
        return self._prefix, self._suffix

    def prompt_tokens(self, prompt: str) -> int:
        """Return the number of tokens that a prompt alone takes, truncated and without special tokens after it."""
        return len(self.cut(self.tokenize([prompt])[0])) - self._suffix if prompt else 0


@contextmanager
def _typed_errors(what: str) -> Iterator[None]:
    """Turn the backend's exceptions, and Rust panics, which are not an `Exception`, into `BundleError`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise BundleError(f"{what} ({' '.join(str(error).split())}); export the model again") from error


def _added_tokens(backend: _Backend) -> tuple[int, int]:
    """Return the number of special tokens that the tokenizer puts before a text, and of those after it."""
    mask = backend.encode("a").special_tokens_mask
    before = next((count for count, special in enumerate(mask) if not special), 0)
    return before, next((count for count, special in enumerate(reversed(mask)) if not special), 0)


def _chunked(backend: _Backend, prefix: int, suffix: int) -> ChunkedTokenizer | None:
    """Return a tokenizer that remembers chunks of text, or None if this one's ids do not come chunk by chunk."""
    if not is_chunked(backend):
        return None
    ends = backend.encode("").ids
    return ChunkedTokenizer(backend, ends[:prefix], ends[prefix:]) if len(ends) == prefix + suffix else None
