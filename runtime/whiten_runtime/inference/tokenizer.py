"""Tokenise texts with the same result on every machine and in every thread; remember the ids of words."""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from sys import getsizeof

from tokenizers import Tokenizer as Backend
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing, PostProcessor, RobertaProcessing, TemplateProcessing

from whiten_runtime.bundle.manifest import Side
from whiten_runtime.errors import (
    BundleError,
    TextError,
    UsageError,
    check_flags,
    described,
    encodable,
    one_line,
    whole_number,
)
from whiten_runtime.ort.process import ForkSafeLock, native_call

CACHE_BYTES = 8 << 20
"""Bytes that the ids of chunks may take: about 60,000 words. 8,656 words of English sentences take 1.1 MB."""

_TOKEN_BYTES = 8 + 32
"""Bytes of one id: its place in a tuple, and the int."""

_ENTRY_BYTES = 40 + 100
"""Bytes of an entry besides its chunk and ids: an empty tuple, and its place in a dictionary that is half full."""

_LONGEST = 40
"""Characters of a chunk whose ids are remembered. Longer ones are addresses and text without blanks, such as Chinese,
which seldom come twice."""

_CHUNKS_PER_BLOCK = 256
"""Chunks that the backend gets as one text: it shares texts among threads, and its offsets take memory."""

Row = tuple[int, ...]


class WordCache:
    """Tokenises texts with a backend for which `is_chunked` holds, and remembers the ids of chunks; thread-safe."""

    def __init__(
        self, backend: Backend, before: Sequence[int], after: Sequence[int], most_bytes: int = CACHE_BYTES
    ) -> None:
        self._backend = backend
        self._before, self._after = tuple(before), tuple(after)  # ids of the special tokens around a text
        self.known: dict[str, Row] = {"": ()}
        self._bytes, self._most_bytes = 0, most_bytes
        self._lock = ForkSafeLock()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, special tokens included; each text can be encoded as UTF-8."""
        chunks = [chunks_of(text) for text in texts]
        known = self.known  # read once: `_remember` replaces it when it is full
        try:
            return [self._row(known, row) for row in chunks]
        except KeyError:
            ids_of = self._find(known, dict.fromkeys(chunk for row in chunks for chunk in row))
            return [self._row(ids_of, row) for row in chunks]

    def _row(self, known: dict[str, Row], chunks: Iterable[str]) -> list[int]:
        return [*self._before, *chain.from_iterable(map(known.__getitem__, chunks)), *self._after]

    def _find(self, known: dict[str, Row], wanted: Iterable[str]) -> dict[str, Row]:
        ids_of, new = {}, []
        for chunk in wanted:
            ids = known.get(chunk)
            if ids is None:
                new.append(chunk)
            else:
                ids_of[chunk] = ids
        short = encode_chunks(self._backend, [chunk for chunk in new if len(chunk) <= _LONGEST])
        self._remember(short)
        return ids_of | short | _one_by_one(self._backend, [chunk for chunk in new if len(chunk) > _LONGEST])

    def _remember(self, entries: dict[str, Row]) -> None:
        with self._lock:
            for chunk, ids in entries.items():
                if chunk in self.known:
                    continue
                self._bytes += getsizeof(chunk) + _ENTRY_BYTES + _TOKEN_BYTES * len(ids)
                if self._bytes > self._most_bytes:
                    self.known, self._bytes = {"": ()}, 0
                self.known[chunk] = ids


# BERT's normaliser, its pre-tokeniser and WordPiece never look beyond a blank: the ids of a text are those of its
# chunks, one after the other. Chunks are cut at four characters only. Others that Unicode calls white space stay inside
# a chunk, because the normaliser removes some of them and so joins what they separate.
def chunks_of(text: str) -> list[str]:
    """Cut a text at blanks, tabs and ends of lines; chunks may be empty."""
    return text.replace("\n", " ").replace("\t", " ").replace("\r", " ").split(" ")


def is_chunked(backend: Backend) -> bool:
    """Return whether the ids of a text are those of its chunks, between special tokens that every text gets.

    Components that are not known to be so make it False, as do added tokens with anything but printable ASCII, which
    could contain a blank, or be given one by the normaliser.
    """
    model, normalizer, splitter = backend.model, backend.normalizer, backend.pre_tokenizer
    kinds = (type(model), type(normalizer), type(splitter)) == (WordPiece, BertNormalizer, BertPreTokenizer)
    if not kinds or not _only_adds_ends(backend.post_processor) or backend.encode_special_tokens:
        return False
    added = (token.content for token in backend.get_added_tokens_decoder().values())
    return all(token.isascii() and token.isprintable() and " " not in token for token in added)


def encode_chunks(backend: Backend, chunks: Sequence[str]) -> dict[str, Row]:
    """Return the ids of chunks, none of which is empty or contains a character at which `chunks_of` cuts.

    The backend gets many chunks as one text, which takes half the time of one by one, and says where in it each token
    is from. If it says of a token that it is from more than one chunk, all are encoded one by one.
    """
    ids_of: dict[str, Row] = {}
    size = _CHUNKS_PER_BLOCK
    groups = [chunks[start : start + size] for start in range(0, len(chunks), size)]
    encodings = backend.encode_batch([" ".join(group) for group in groups], add_special_tokens=False)
    for group, encoding in zip(groups, encodings, strict=True):
        rows = _divide(group, encoding.ids, encoding.offsets)
        ids_of.update(_one_by_one(backend, group) if rows is None else zip(group, rows, strict=True))
    return ids_of


def _only_adds_ends(processor: PostProcessor | None) -> bool:
    """Return whether a post-processor puts special tokens before and after a text, and else leaves it as it is."""
    if isinstance(processor, TemplateProcessing):
        pieces = json.loads(processor.__getstate__())["single"]
        return [piece["Sequence"]["id"] for piece in pieces if "Sequence" in piece] == ["A"]
    return processor is None or isinstance(processor, BertProcessing | RobertaProcessing)


def _divide(chunks: Sequence[str], ids: Sequence[int], offsets: Sequence[tuple[int, int]]) -> list[Row] | None:
    """Return the ids of each chunk of a text, in which a blank is between chunks; None if a token is in two of them."""
    starts, ends, position = [], [], 0
    for chunk in chunks:
        starts.append(position)
        ends.append(position + len(chunk))
        position = ends[-1] + 1
    rows: list[list[int]] = [[] for _ in chunks]
    for token, (first, last) in zip(ids, offsets, strict=True):
        index = bisect_right(starts, first) - 1
        if last > ends[index]:
            return None
        rows[index].append(token)
    return list(map(tuple, rows))


def _one_by_one(backend: Backend, chunks: Sequence[str]) -> dict[str, Row]:
    encodings = backend.encode_batch_fast(list(chunks), add_special_tokens=False)
    return {chunk: tuple(encoding.ids) for chunk, encoding in zip(chunks, encodings, strict=True)}


_TEXTS_PER_BLOCK = 512
"""Texts that the backend gets at once, at most: its encodings take many times the memory of their ids."""

_CHARACTERS_PER_BLOCK = 1 << 20
"""Characters of texts that the backend gets at once, unless one text has more: each may be a token of 110 bytes."""

_CHARACTERS = re.compile("[\ud800-\udbff][\udc00-\udfff]|.", re.DOTALL)
"""Characters of a text as `encodable` gives them, of which one may be a pair of surrogates in the text."""


@dataclass(frozen=True, slots=True)
class Token:
    id: int  # its id
    text: str  # what the tokenizer calls it, such as "##ing"
    special: bool  # whether it is not of the text, but put before or after it
    start: int  # index of its first character in the text
    end: int  # index after its last character


class Tokenizer:
    """Tokenises texts with a tokenizer that is configured once and never changed again, so that threads can share it.

    Truncation and padding stay off in the backend. `cut` truncates after tokenisation, so each text's full length is
    known without extra work.

    Args:
        path: a tokenizer.json.
        max_seq_length: maximum number of tokens of a text, special tokens included.
        truncation_side: side from which tokens are removed.
        content: the content of the file; None to read it.
    """

    def __init__(
        self, path: Path, max_seq_length: int, truncation_side: Side = "right", content: bytes | None = None
    ) -> None:
        with native_call, _typed_errors(f"{path}: not a tokenizer"):
            self._backend = Backend.from_buffer(path.read_bytes() if content is None else content)
            self._backend.no_truncation()
            self._backend.no_padding()
            specials = self._backend.num_special_tokens_to_add(False)
            if max_seq_length <= specials:
                raise BundleError(
                    f"{path}: adds {specials} special tokens to a text, but the bundle takes {max_seq_length} in all; "
                    "export the model again"
                )
            self._prefix, self._suffix = _added_tokens(self._backend)
            self._words = _word_cache(self._backend, self._prefix, self._suffix)
        self.max_seq_length = max_seq_length
        self.truncation_side = truncation_side

    def shortened(self, max_seq_length: int) -> "Tokenizer":
        other = copy(self)
        other.max_seq_length = max_seq_length
        return other

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, special tokens included, not truncated."""
        return [row for rows in self.parts(texts) for row in rows]

    def parts(self, texts: Sequence[str]) -> Iterator[list[list[int]]]:
        for part in _parts(texts):
            with native_call, _typed_errors("the bundle's tokenizer fails"):
                if self._words is not None:
                    rows = self._words.tokenize(part)
                else:
                    rows = [encoding.ids for encoding in self._backend.encode_batch_fast(part)]
            yield rows

    def tokens(self, text: str, special: bool = True) -> list[Token]:
        check_flags(special=special)
        if not isinstance(text, str):
            raise TextError(f"text is {described(text)}; wanted one str")
        with native_call, _typed_errors("the bundle's tokenizer fails"):
            # A batch of one: other than `encode`, it lets other threads run meanwhile.
            encoding = self._backend.encode_batch([encodable(text)], add_special_tokens=special)[0]
            parts = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True)
            at = [*(match.start() for match in _CHARACTERS.finditer(text)), len(text)]
            return [
                Token(token_id, name, bool(mask), at[start], at[end]) for token_id, name, mask, (start, end) in parts
            ]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of token ids, as far as they still hold it."""
        check_flags(skip_special=skip_special)
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise UsageError(f"ids is {described(ids)}; wanted a list of token ids")
        last = self._backend.get_vocab_size() - 1
        numbers = [whole_number(f"ids[{index}]", number, 0, last) for index, number in enumerate(ids)]
        return self._backend.decode(numbers, skip_special_tokens=skip_special)

    def cut(self, ids: list[int]) -> list[int]:
        """Truncate to `max_seq_length` tokens, keeping the special tokens that begin and end a text."""
        if len(ids) <= self.max_seq_length:
            return ids
        if self.truncation_side == "left":
            return ids[: self._prefix] + ids[len(ids) - (self.max_seq_length - self._prefix) :]
        room = self.max_seq_length - self._suffix
        return ids[:room] + ids[len(ids) - self._suffix :]

    @property
    def special_tokens(self) -> tuple[int, int]:
        """Return the number of special tokens before every text, and of those after it."""
        return self._prefix, self._suffix

    def prompt_tokens(self, prompt: str) -> int:
        """Return the number of tokens that a prompt alone takes, truncated and without special tokens after it."""
        return len(self.cut(self.tokenize([prompt])[0])) - self._suffix if prompt else 0


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield texts in lists of which the backend gets one at a time: halves of what is too much."""
    count = len(texts)
    if count > _TEXTS_PER_BLOCK or (count > 1 and sum(map(len, texts)) > _CHARACTERS_PER_BLOCK):
        yield from _parts(texts[: count // 2])
        yield from _parts(texts[count // 2 :])
    else:
        yield [encodable(text) for text in texts]


@contextmanager
def _typed_errors(what: str) -> Iterator[None]:
    """Turn the backend's exceptions, and Rust panics, which are not an `Exception`, into `BundleError`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, BundleError):
        raise
    except BaseException as error:
        raise BundleError(f"{what} ({one_line(error)}); export the model again") from error


def _added_tokens(backend: Backend) -> tuple[int, int]:
    """Return the number of special tokens that the tokenizer puts before a text, and of those after it."""
    mask = backend.encode(_known_text(backend)).special_tokens_mask
    before = next((count for count, special in enumerate(mask) if not special), 0)
    return before, next((count for count, special in enumerate(reversed(mask)) if not special), 0)


def _known_text(backend: Backend) -> str:
    """Return a text that gives a token: "a", or another where a tokenizer drops it, as those of molecules may."""
    special = {number for number, token in backend.get_added_tokens_decoder().items() if token.special}
    ids = sorted(number for number in backend.get_vocab().values() if number not in special)
    texts = chain(("a",), (backend.decode([number]) for number in ids))
    return next((text for text in texts if backend.encode(text, add_special_tokens=False).ids), "a")


def _word_cache(backend: Backend, prefix: int, suffix: int) -> WordCache | None:
    """Return a tokenizer that remembers words, or None if the ids of a text are not those of its words."""
    if not is_chunked(backend):
        return None
    ends = backend.encode("").ids
    return WordCache(backend, ends[:prefix], ends[prefix:]) if len(ends) == prefix + suffix else None
