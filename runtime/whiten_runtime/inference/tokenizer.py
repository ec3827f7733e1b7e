"""Tokenise texts, with the same result on every machine and in every thread."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer as _Backend

from whiten_runtime.bundle.manifest import Side
from whiten_runtime.bundle.reading import TOKENIZER_BYTES, read_file
from whiten_runtime.checks import encodable
from whiten_runtime.errors import BundleError, UsageError
from whiten_runtime.inference.chunked import ChunkedTokenizer, is_chunked
from whiten_runtime.inference.long_texts import Places, places_of

_TOKEN_CHARACTERS = 6
"""Characters a token of the part of a long text that is tokenised first: English sentences have 4 to 5 a token."""

_LONGER = 4
"""How many times longer each further part is, if the one before gave too few tokens."""

_AT_ONCE = 512
"""Texts that the backend gets at once: its encodings take many times the memory of their ids."""


@dataclass(frozen=True, slots=True)
class Token:
    """Describes one token of a text.

    Attributes:
        id: its id.
        text: what the tokenizer calls it, such as "##ing".
        special: whether it is not of the text, but put before or after it.
        start: index of its first character in the text.
        end: index after its last character.
    """

    id: int
    text: str
    special: bool
    start: int
    end: int


class Tokenizer:
    """Tokenises texts with a tokenizer that is configured once and never changed again, so that threads can share it.

    Truncation and padding stay off in the backend. `cut` truncates after tokenisation, so each text's full length is
    known without extra work.

    Args:
        path: a `tokenizer.json`.
        max_seq_length: maximum number of tokens of a text, special tokens included.
        truncation_side: side from which tokens are removed from texts that are too long.

    Attributes:
        max_seq_length: maximum number of tokens of a text.
        truncation_side: side from which tokens are removed.
        probed: characters of the part of a longer text that `tokenize_enough` tokenises first.

    Raises:
        BundleError: the file is not a tokenizer, or its special tokens leave no room for a text.
    """

    def __init__(self, path: Path, max_seq_length: int, truncation_side: Side = "right") -> None:
        with _typed_errors(f"{path}: not a tokenizer"):
            self._backend = _Backend.from_buffer(read_file(path, TOKENIZER_BYTES))
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
        self.truncation_side = truncation_side
        self.probed = _TOKEN_CHARACTERS * max_seq_length

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

    def tokens(self, text: str, special: bool = True) -> list[Token]:
        """Return the tokens of a text, not truncated.

        Args:
            text: the text.
            special: with the special tokens before and after it.

        Raises:
            BundleError: the tokenizer fails on the text.
        """
        with _typed_errors("the bundle's tokenizer fails"):
            # A batch of one: other than `encode`, it lets other threads run meanwhile.
            found = self._backend.encode_batch([encodable(text)], add_special_tokens=special)[0]
            parts = zip(found.ids, found.tokens, found.special_tokens_mask, found.offsets, strict=True)
            return [Token(one, name, bool(mask), *offsets) for one, name, mask, offsets in parts]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of token ids, as far as they still hold it.

        Args:
            ids: token ids.
            skip_special: leave out special tokens.

        Raises:
            UsageError: an id is not in the vocabulary.
        """
        size = self._backend.get_vocab_size()
        for one in ids:
            if not 0 <= one < size:
                raise UsageError(f"token id {one} is not in the vocabulary, which has {size} tokens")
        return self._backend.decode(ids, skip_special_tokens=skip_special)

    def tokenize_enough(self, texts: Sequence[str]) -> list[list[int]]:
        """Return token ids of each text as `tokenize` does, but of a long text perhaps only of a part.

        What `cut` makes of them is what it makes of the ids of the whole text, and they are more than `max_seq_length`
        where those of the whole text are. Time and memory do not grow with a text's length, if the part of it that is
        kept can be found without the rest; see `long_texts`.

        Raises:
            BundleError: the tokenizer fails on a text.
        """
        if max(map(len, texts), default=0) <= self.probed:
            return self.tokenize(texts)
        found: dict[int, list[int]] = {}
        left, size = dict(enumerate(texts)), self.probed
        while left:
            left = {index: self._without_middles(text, size) for index, text in left.items()}
            parts = {index: part for index, text in left.items() if (part := self._part(text, size)) is not None}
            for (index, part), row in zip(parts.items(), self.tokenize(list(parts.values())), strict=True):
                if len(row) > self.max_seq_length or len(part) == len(left[index]):
                    found[index] = row
            left = {index: text for index, text in left.items() if index not in found}
            size *= _LONGER
        return [found[index] for index in range(len(texts))]

    def _part(self, text: str, size: int) -> str | None:
        """Return a part of about `size` characters whose tokens are those of the text, or None; of others, all."""
        if len(text) <= size or self._places is None:
            return text
        return self._places.part(text, size, self.truncation_side)

    def _without_middles(self, text: str, size: int) -> str:
        return text if self._part(text, size) is not None or self._places is None else self._places.shortened(text)

    @cached_property
    def _places(self) -> Places | None:
        return places_of(self._backend)

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

    def token_id(self, token: str) -> int | None:
        """Return the id of a token of the vocabulary, such as that of padding; None if there is no such token."""
        return self._backend.token_to_id(token)

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


def _chunked(backend: _Backend, prefix: int, suffix: int) -> ChunkedTokenizer | None:
    """Return a tokenizer that remembers chunks of text, or None if this one's ids do not come chunk by chunk."""
    if not is_chunked(backend):
        return None
    ends = backend.encode("").ids
    return ChunkedTokenizer(backend, ends[:prefix], ends[prefix:]) if len(ends) == prefix + suffix else None
