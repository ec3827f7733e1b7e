"""Tokenise texts, with the same result on every machine and in every thread."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer as _Backend

from whiten_runtime.bundle.files import TOKENIZER_BYTES, read_file
from whiten_runtime.bundle.records import Side
from whiten_runtime.checks import encodable
from whiten_runtime.errors import BundleError, UsageError
from whiten_runtime.inference.word_cache import WordCache, is_chunked

_AT_ONCE = 512
"""Texts that the backend gets at once: its encodings take many times the memory of their ids."""


@dataclass(frozen=True, slots=True)
class Token:
    """Describes one token of a text."""

    id: int  # its id
    text: str  # what the tokenizer calls it, such as "##ing"
    special: bool  # whether it is not of the text, but put before or after it
    start: int  # index of its first character in the text
    end: int  # index after its last character


class Tokenizer:
    """Tokenises texts with a tokenizer that is configured once and never changed again, so that threads can share it.

    Truncation and padding stay off in the backend. `cut` truncates after tokenisation, so each text's full length is
    known without extra work.
    """

    def __init__(self, path: Path, max_seq_length: int, truncation_side: Side = "right") -> None:
        with _typed_errors(f"{path}: not a tokenizer"):
            self._backend = _Backend.from_buffer(read_file(path, TOKENIZER_BYTES))
            self._backend.no_truncation()
            self._backend.no_padding()
            specials = self._backend.num_special_tokens_to_add(False)
            self._prefix, self._suffix = _added_tokens(self._backend)
            self._words = _word_cache(self._backend, self._prefix, self._suffix)
        if max_seq_length <= specials:
            raise BundleError(
                f"{path}: adds {specials} special tokens to a text, but the bundle takes {max_seq_length} in all; "
                "export the model again"
            )
        self.max_seq_length = max_seq_length
        self.truncation_side = truncation_side

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, special tokens included, not truncated."""
        ids: list[list[int]] = []
        with _typed_errors("the bundle's tokenizer fails"):
            for start in range(0, len(texts), _AT_ONCE):
                part = [encodable(text) for text in texts[start : start + _AT_ONCE]]
                if self._words is not None:
                    ids.extend(self._words.tokenize(part))
                else:
                    ids.extend(encoding.ids for encoding in self._backend.encode_batch_fast(part))
        return ids

    def tokens(self, text: str, special: bool = True) -> list[Token]:
        """Return the tokens of a text, not truncated."""
        with _typed_errors("the bundle's tokenizer fails"):
            # A batch of one: other than `encode`, it lets other threads run meanwhile.
            found = self._backend.encode_batch([encodable(text)], add_special_tokens=special)[0]
            parts = zip(found.ids, found.tokens, found.special_tokens_mask, found.offsets, strict=True)
            return [Token(one, name, bool(mask), *offsets) for one, name, mask, offsets in parts]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of token ids, as far as they still hold it."""
        size = self._backend.get_vocab_size()
        for one in ids:
            if not 0 <= one < size:
                raise UsageError(f"token id {one} is not in the vocabulary, which has {size} tokens")
        return self._backend.decode(ids, skip_special_tokens=skip_special)

    def cut(self, ids: list[int]) -> list[int]:
        """Truncate to `max_seq_length` tokens, keeping the special tokens that begin and end a text."""
        if len(ids) <= self.max_seq_length:
            return ids
        if self.truncation_side == "left":
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
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, BundleError):
        raise
    except BaseException as error:
        raise BundleError(f"{what} ({' '.join(str(error).split())}); export the model again") from error


def _added_tokens(backend: _Backend) -> tuple[int, int]:
    """Return the number of special tokens that the tokenizer puts before a text, and of those after it."""
    mask = backend.encode("a").special_tokens_mask
    before = next((count for count, special in enumerate(mask) if not special), 0)
    return before, next((count for count, special in enumerate(reversed(mask)) if not special), 0)


def _word_cache(backend: _Backend, prefix: int, suffix: int) -> WordCache | None:
    """Return a tokenizer that remembers words, or None if the ids of a text are not those of its words."""
    if not is_chunked(backend):
        return None
    ends = backend.encode("").ids
    return WordCache(backend, ends[:prefix], ends[prefix:]) if len(ends) == prefix + suffix else None
