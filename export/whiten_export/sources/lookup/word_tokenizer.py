"""Build the tokenizer of word vectors: it splits texts into words, and lower-cases them if the file's words are so."""

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from whiten_export.sources.base import SourceTokenizer
from whiten_runtime.reporter import Reporter

_PAD, _UNKNOWN = "<|pad|>", "<|unknown|>"
SPECIALS = (_PAD, _UNKNOWN)
"""Entries before the words; no word of a text is ever one of them."""

_WORD = (
    r"[\p{L}\p{M}]+(?=n['’]t(?![\p{L}\p{M}]))"  # do|n't
    r"|n['’]t(?![\p{L}\p{M}])"
    r"|['’](?:s|re|ve|ll|d|m|S|RE|VE|LL|D|M)(?![\p{L}\p{M}])"
    r"|\p{N}+(?:[.,]\p{N}+)*"
    r"|[\p{L}\p{M}\p{N}_]+"
    r"|[^\s\p{L}\p{M}\p{N}_]"
)
"""Pattern of a word: clitics and punctuation separate, numbers whole, hyphenated compounds in their parts."""

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
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
    if lowers and (lost := [word for word in upper if _is_lost(word, backend)]):
        report.warn(
            "texts are lower-cased, as nearly all words of this file are; words with upper-case letters that no text "
            f"can find then: {len(lost):,}, such as '{lost[0]}'; write them in lower case in the file to use them"
        )
    text = backend.to_str()

    def own_ids(texts: Sequence[str], max_length: int) -> list[list[int]]:
        return [encoding.ids[:max_length] for encoding in Tokenizer.from_str(text).encode_batch(list(texts))]

    return SourceTokenizer(text, own_ids, 0, {"pad_token": _PAD, "unk_token": _UNKNOWN}, _LENGTH)


def _count_cased(words: Sequence[str]) -> int:
    """Count the words whose letters have case; words of other scripts say nothing about a file's casing."""
    return sum(word != word.lower() or word != word.upper() for word in words)


def _is_lost(word: str, backend: Tokenizer) -> bool:
    """Return whether a word that the pattern keeps whole has no entry once it is lower-cased."""
    parts = backend.pre_tokenizer.pre_tokenize_str(word)
    return len(parts) == 1 and backend.token_to_id(backend.normalizer.normalize_str(word)) is None
