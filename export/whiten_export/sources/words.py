"""Read a file of word vectors: its words, the tokenizer that finds them in texts, and the graph that looks them up."""

import gzip
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from whiten_export.graph.build import HiddenStates, describe
from whiten_export.graph.ends import look_up, table_config
from whiten_export.proof.reference import Float64Array, Reference
from whiten_export.sources.checkpoint import Checkpoint, source_record
from whiten_export.sources.model import TableReference, TokenModel
from whiten_export.sources.tokenizer import SourceTokenizer
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.errors import DataError
from whiten_runtime.reporter import Reporter

_FORMAT = "wanted GloVe's text format"

_HEADER = re.compile(r"\s*([0-9]{1,18})\s+([0-9]{1,18})")

_NUMBERS = re.compile(r"[-+.0-9eE ]+")
"""Characters of numbers and the blanks between them: numpy takes 1_0, nan and digits of other scripts, too."""

_SAMPLE = 101
"""Number of lines by which the width of a file without a header is known: the first, and a hundred behind it."""


@dataclass(frozen=True)
class Words:
    """Words and their vectors, most frequent first."""

    words: tuple[str, ...]  # n distinct words; the reserved ones come first
    vectors: NDArray[np.float32]  # float32 [n, d]; zeros for reserved words


def read_words(path: Path, reserved: tuple[str, ...] = ()) -> Words:
    """Read a .txt or .vec file, also inside .gz or .zip, without repeated words. Blanks or tabs are between fields.

    A first line "n d" is a header: n lines with d numbers each follow. A word may contain blanks, as a few of GloVe's
    and of fastText's do; the last d fields of a line are its numbers.

    Raises:
        DataError: a line is not a word with d numbers, or there are not n of them.
    """
    words = dict.fromkeys(reserved)
    rows = bytearray()  # grows in place, because files have gigabytes
    with _opened(path) as stream:
        lines = _lines(stream, path)
        first = list(islice(lines, _SAMPLE))
        header = _header(first[0]) if first else None
        count, width = header or (None, _usual_width(first, path))
        skipped = 0 if header is None else 1
        number = skipped
        for number, line in enumerate(chain(first[skipped:], lines), skipped + 1):
            if count is not None and number > count + 1:
                raise DataError(f"{path}: line {number} is one too many: line 1 says {count:,} words; correct line 1")
            word, vector = _entry(line, width)
            if not word or not np.isfinite(vector).all():
                said = "" if header is None else ", as line 1 says"
                raise DataError(f"{path}: line {number} is not a word with {width} numbers{said}; {_FORMAT}")
            if not rows:
                rows.extend(bytes(len(reserved) * vector.nbytes))
            if word not in words:
                words[word] = None
                rows.extend(vector.tobytes())
    if len(words) == len(reserved):
        raise DataError(f"{path}: holds no word; {_FORMAT}")
    if count is not None and number < count + 1:
        raise DataError(
            f"{path}: ends with line {number}, but line 1 says {count:,} words; copy the file again, or correct line 1"
        )
    return Words(tuple(words), np.frombuffer(rows, np.float32).reshape(len(words), width))


def _header(line: str) -> tuple[int, int] | None:
    """Return the number of words and of numbers that a line "n d" states; None for another line."""
    match = _HEADER.fullmatch(line)
    return None if match is None else (int(match[1]), int(match[2]))


def _usual_width(lines: list[str], path: Path) -> int:
    """Return how many numbers most lines have: the first may be damaged, or its word may contain blanks."""
    widths = [line.count(" ") for line in lines]
    if not widths:
        raise DataError(f"{path}: holds no word; {_FORMAT}")
    ((width, times),) = Counter(widths).most_common(1)
    if 2 * times <= len(lines):
        other = next(number for number, count in enumerate(widths) if count != widths[0])
        raise DataError(
            f"{path}: the number of values is {widths[0]} in line 1 and {widths[other]} in line {other + 1}; wanted as "
            'many in each, or a first line "WORDS NUMBERS" that says how many'
        )
    return width


def _entry(line: str, width: int) -> tuple[str, NDArray[np.float32]]:
    """Return the word of a line, and its vector [width]; an empty word for a line that has no such numbers."""
    word, *numbers = line.rsplit(" ", width)
    try:
        vector = np.array(numbers, np.float32)
    except ValueError:
        return "", np.empty(0, np.float32)
    valid = 0 < width == len(numbers) and _NUMBERS.fullmatch(line, len(word))
    return word if valid else "", vector


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive:
                files = (item for item in archive.infolist() if item.filename.endswith((".txt", ".vec")))
                texts = [
                    item for item in files if not PurePosixPath(item.filename).name.startswith("._")
                ]  # macOS's own
                if not texts:
                    raise DataError(
                        f"{path}: holds no word vectors (.txt, .vec); if it is a model, unpack it and name its folder"
                    )
                if len(texts) > 1:
                    raise DataError(f"{path}: holds {len(texts)} text files; wanted one: unpack the one that you want")
                with archive.open(texts[0]) as stream:
                    yield stream  # type: ignore[misc]
        elif path.suffix.lower() == ".gz":
            with gzip.open(path) as stream:
                yield stream  # type: ignore[misc]
        else:
            with path.open("rb") as stream:
                yield stream
    except (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path}: not a complete archive ({error})") from None


_LONGEST = 1 << 20
"""Bytes of a line: it has a word, and some hundred numbers."""


def _lines(stream: BinaryIO, path: Path) -> Iterator[str]:
    """Yield the lines of a file, without a byte order mark at its beginning, with blanks for tabs, and none at ends."""
    for number, line in enumerate(iter(lambda: stream.readline(_LONGEST), b""), 1):
        if len(line) == _LONGEST:
            raise DataError(f"{path}: line {number} is longer than {_LONGEST >> 20} MiB; {_FORMAT}")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            yield text.replace("\t", " ").rstrip(" \r\n")
        except UnicodeDecodeError:
            raise DataError(f"{path}: line {number} is not UTF-8; {_FORMAT}") from None


_PAD, _UNKNOWN = "<|pad|>", "<|unknown|>"
SPECIALS = (_PAD, _UNKNOWN)
"""Entries before the words; no word of a text is ever one of them."""

_NEGATION = r"[\p{L}\p{M}]+(?=n['’]t(?![\p{L}\p{M}]))|n['’]t(?![\p{L}\p{M}])"  # do|n't

_ELISION = r"|(?:{stems})['’](?=[\p{{L}}\p{{M}}])(?!(?:s|re|ve|ll|d|m|S|RE|VE|LL|D|M)(?![\p{{L}}\p{{M}}]))"
"""Pattern of an elided word and its apostrophe before the next word, as in French and Italian: l'|eau, qu'|il."""

_WORD = (
    r"|['’](?:s|re|ve|ll|d|m|S|RE|VE|LL|D|M)(?![\p{L}\p{M}])"
    r"|\p{N}+(?:[.,]\p{N}+)*"
    r"|[\p{L}\p{M}\p{N}_]+"
    r"|[^\s\p{L}\p{M}\p{N}_]"
)
"""Pattern of other words: clitics and punctuation separate, numbers whole, hyphenated compounds in their parts."""

_APOSTROPHES = "'’"

_LENGTH = 4096

_MOST_UPPER = 0.02
"""Largest share of words with an upper-case letter in a file whose texts are lower-cased.

Files of lower-case words, such as glove.6B, have none, or a few by accident. Files that keep case, such as glove.840B,
have many, and fewest among their first words, the most frequent ones: of the words of Python's documentation, by their
frequency, 8 % of the first 200, 14 % of the first 1,000, 30 % of all 12,000.
"""


def word_tokenizer(words: Sequence[str], report: Reporter) -> SourceTokenizer:
    """Return a tokenizer that gives a word its place among the words, after `SPECIALS`; others are unknown."""
    vocabulary = {word: index for index, word in enumerate((*SPECIALS, *words))}
    elided = [word for word in words if word[-1] in _APOSTROPHES and word[:-1].isalpha()]
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    steps: list[Any] = [normalizers.NFC()]
    upper = [word for word in words if word != word.lower()]
    cased = _count_cased(words)
    lowers = len(upper) <= _MOST_UPPER * cased
    if upper:
        report.stage(
            f"texts {'are lower-cased' if lowers else 'keep their case'}: {len(upper):,} of the {cased:,} words of the "
            "file that have case have an upper-case letter"
        )
    if lowers:
        steps.append(normalizers.Lowercase())
    steps += _apostrophes(frozenset(elided))
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_pattern(elided)), "removed", invert=True)
    if lowers and (lost := [word for word in upper if _is_lost(word, backend)]):
        report.warn(
            "texts are lower-cased, as nearly all words of this file are; words with upper-case letters that no text "
            f"can find then: {len(lost):,}, such as '{lost[0]}'; write them in lower case in the file to use them"
        )
    if unreached := _unreached(words, frozenset(elided), backend):
        frequent = sum(place < _FREQUENT for place in unreached)
        report.warn(
            f"texts are split into other words than {len(unreached):,} of the file's {len(words):,}, {frequent:,} of "
            f"them among the first {_FREQUENT:,}, such as '{words[unreached[0]]}': no text can find those"
        )
    text = backend.to_str()

    def own_ids(texts: Sequence[str], max_length: int) -> list[list[int]]:
        return [encoding.ids[:max_length] for encoding in Tokenizer.from_str(text).encode_batch(list(texts))]

    return SourceTokenizer(text, own_ids, 0, {"pad_token": _PAD, "unk_token": _UNKNOWN}, _LENGTH)


_FREQUENT = 1000


def _pattern(elided: Sequence[str]) -> str:
    """Return the pattern of a word, for a file with these elided words."""
    stems = sorted({word[:-1] for word in elided}, key=lambda stem: (-len(stem), stem))
    return _NEGATION + (_ELISION.format(stems="|".join(stems)) if stems else "") + _WORD


def _apostrophes(elided: frozenset[str]) -> Iterator[Any]:
    """Yield the steps that write an apostrophe as the file does after elided words that it has with one kind only."""
    for wanted, other in (("'", "’"), ("’", "'")):
        stems = sorted(word[:-1] for word in elided if word[-1] == wanted and word[:-1] + other not in elided)
        if stems:
            before = "|".join(rf"\b{stem}" for stem in stems)
            yield normalizers.Replace(Regex(rf"(?<={before}){other}(?=[\p{{L}}\p{{M}}])"), wanted)


def _unreached(words: Sequence[str], elided: Container[str], backend: Tokenizer) -> list[int]:
    """Return the places of the words that no text can find, because it is split into others at them."""
    places = [place for place, word in enumerate(words) if word not in elided]
    encodings = backend.encode_batch_fast([words[place] for place in places])
    return [place for place, encoding in zip(places, encodings, strict=True) if len(encoding.ids) != 1]


def _count_cased(words: Sequence[str]) -> int:
    """Count the words whose letters have case; words of other scripts say nothing about a file's casing."""
    return sum(word != word.lower() or word != word.upper() for word in words)


def _is_lost(word: str, backend: Tokenizer) -> bool:
    """Return whether a word that the pattern keeps whole has no entry once it is lower-cased."""
    parts = backend.pre_tokenizer.pre_tokenize_str(word)
    return len(parts) == 1 and backend.token_to_id(backend.normalizer.normalize_str(word)) is None


_SMOOTHING = 1e-3
"""The constant a in a / (a + p(w)), Arora et al., section 4.1."""


class WordVectors(TokenModel):
    """Reads a file of word vectors. Words that are not in it are ignored."""

    def __init__(self, checkpoint: Checkpoint, report: Reporter) -> None:
        self.checkpoint = checkpoint
        read = read_words(checkpoint.weights[0], SPECIALS)
        words = read.words[len(SPECIALS) :]
        width = read.vectors.shape[1]
        self._vectors = read.vectors
        self._weights = np.concatenate([np.zeros(len(SPECIALS)), word_weights(len(words))])
        self.vocab_size = len(self._vectors)
        self.record = source_record(checkpoint, "words", 0, width)
        self.tokenizer = word_tokenizer(words, report)
        self.client_config = table_config(self._vectors)

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Build a graph that looks up the vector of each word, and its weight in the sentence."""
        builder, state = look_up(self._vectors, "words")
        ids, mask = builder.input("input_ids"), builder.input("attention_mask")
        unknown = builder.constant("words.last_special", np.int64(len(SPECIALS) - 1))
        known = builder.op("And", builder.op("Greater", ids, unknown), builder.boolean(mask))
        counted = builder.float32(known)
        count = builder.op("ReduceSum", counted, builder.integers(1), keepdims=1)
        weighted = counted
        if pooling == "sif":
            weights = builder.constant("words.weights", self._weights.astype(np.float32))
            weighted = builder.op("Mul", counted, builder.op("Gather", weights, ids))
        shares = builder.op("Div", weighted, builder.op("Max", count, builder.scalar(1)))
        describe(shares, "token_shares", "batch_size", "sequence_length")
        return HiddenStates(builder.close(state, shares), (state,), shares)

    def reference(self, layers: tuple[int, ...], pooling: Pooling) -> Reference:
        """Return the same computation on the arrays, in float64."""
        weights = self._weights if pooling == "sif" else (self._weights > 0).astype(np.float64)
        return TableReference(self._vectors, pooling, weights)


def word_weights(count: int) -> Float64Array:
    """Return a / (a + p(w)) of each of `count` words, [n]; p is taken as inversely proportional to a word's place."""
    shares = 1 / np.arange(1, count + 1)
    shares /= shares.sum()
    return np.asarray(_SMOOTHING / (_SMOOTHING + shares))
