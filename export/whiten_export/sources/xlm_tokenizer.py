r"""Rebuild transformers' `XLMTokenizer`, which exists in Python only, as a `tokenizers` pipeline that can be saved.

The original cleans punctuation, splits words as the Moses scripts do (sacremoses), lowercases, removes accents and
applies BPE, always by the rules for English unless told otherwise. Here each of its substitutions is a `Replace`. A
space put before or after something replaces a match of no width, never before the first character: `tokenizers` loses
count of the text then, and panics. Where the original's match includes the character after, which therefore cannot
begin the next match, the pattern says `(?!\G)`. Character classes, abbreviations and the version of Unicode are those
of the Python and sacremoses that build the tokenizer. Substitutions of the original that cannot change a token (spaces
around brackets, which are split off later anyway) are left out.

Differences from the original:

- A piece that a merge makes but `vocab.json` lacks is the unknown token in the original. A BPE model must know what its
  merges make, so such pieces have ids above all others: see `surplus_pieces`.
- transformers 4 lowercases before it looks for special tokens, so `<PAD>` is a special token there. Here it is text.
- The original ignores lone surrogates; `tokenizers` refuses them.
- `split_special_tokens`, other languages than English and tokens added with `single_word` are not rebuilt faithfully.
"""

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable
from itertools import chain
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import BPEDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFD, Lowercase, Normalizer, Replace, Sequence, Strip
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

_WORD_END = "</w>"

_RUN_DOT = "\ue000"
"""Stand-in for a dot next to a dot. Texts cannot contain it: private-use characters are removed before."""

_PUNCTUATION = {
    ",": "，、",
    ":": "∶：",
    ";": "；",
    "?": "？",
    "!": "！",
    "(": "（",
    ")": "）",
    "[": "【",
    "]": "】",
    "<": "〈",
    ">": "〉",
    "~": "～",
    "%": "％",
    "-": "━–",
    " - ": "—",
    "...": "…",
    **{str(digit): chr(ord("０") + digit) for digit in range(10)},
}
"""Replacements on the left, of the characters on the right."""

_DOUBLE_QUOTE = "[„“”《》「」]|\u00a0«\u00a0|«\u00a0?|\u00a0»\u00a0|\u00a0?»"


def build_xlm_tokenizer(tokenizer: Any) -> Tokenizer:
    """Rebuild an `XLMTokenizer` for English."""
    vocabulary = tokenizer.get_vocab()
    surplus = enumerate(surplus_pieces(tokenizer), start=max(vocabulary.values()) + 1)
    rebuilt = Tokenizer(
        BPE(
            vocab=vocabulary | {piece: index for index, piece in surplus},
            merges=_merges(tokenizer),
            unk_token=tokenizer.unk_token,
            end_of_word_suffix=_WORD_END,
        )
    )
    rebuilt.normalizer = Sequence(_normalizers(tokenizer))
    rebuilt.pre_tokenizer = WhitespaceSplit()
    first, last = tokenizer.bos_token, tokenizer.sep_token
    rebuilt.post_processor = TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(token, vocabulary[token]) for token in (first, last)],
    )
    rebuilt.decoder = BPEDecoder(suffix=_WORD_END)
    for _, token in sorted(tokenizer.added_tokens_decoder.items()):
        add = rebuilt.add_special_tokens if token.special else rebuilt.add_tokens
        flags = {"lstrip": token.lstrip, "rstrip": token.rstrip, "single_word": token.single_word}
        add([AddedToken(token.content, normalized=False, **flags)])
    return rebuilt


def surplus_pieces(tokenizer: Any) -> tuple[str, ...]:
    """Return pieces that merges need or make and the vocabulary lacks; the original maps them to the unknown token."""
    vocabulary = tokenizer.get_vocab()
    needed = dict.fromkeys(chain.from_iterable((left, right, left + right) for left, right in _merges(tokenizer)))
    return tuple(piece for piece in needed if piece not in vocabulary)


def _merges(tokenizer: Any) -> list[tuple[str, str]]:
    """Return the merges, best first; lines of `merges.txt` without a pair are left out, as in the original."""
    return [merge for merge in sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.get) if len(merge) == 2]


def _normalizers(tokenizer: Any) -> list[Normalizer]:
    steps = _clean_punctuation()
    if _lowercases_first(tokenizer):
        steps.append(Lowercase())
    steps += _split_words(tokenizer.sm.MosesTokenizer(lang="en"))
    if tokenizer.do_lowercase_and_remove_accent:
        steps += _lowercase_and_remove_accents()
    return steps


def _lowercases_first(tokenizer: Any) -> bool:
    """Return whether text is lowercased before words are split (transformers 4; hides abbreviations), not after (5)."""
    text = "Mr. 1"
    return bool(tokenizer.tokenize(text) != tokenizer._tokenize(text))


def _clean_punctuation() -> list[Normalizer]:
    """Replace other punctuation by ASCII, move quotes after commas and dots, and remove unprinted characters."""
    space, digit, unprinted = _char_class(_spaces()), _char_class(_of_category("Nd")), _char_class(_of_category("C"))
    return [
        Replace("\r", ""),
        _replace(f"[。．][{space}]*", ". "),
        *(_replace(f"[{characters}]", ascii_) for ascii_, characters in _PUNCTUATION.items()),
        _replace("[`’]", "'"),
        Replace("''", ' " '),
        _replace("[´‘‚]", "'"),
        Replace("''", '"'),
        _replace(_DOUBLE_QUOTE, '"'),
        _replace(r'"[,.]+\K', '"'),
        _replace('"(?=[,.])', ""),
        _between(f"[{digit}]", "\u00a0", f"[{digit}]", "."),
        _replace(f"[{unprinted}]", ""),
    ]


def _split_words(moses: Any) -> list[Normalizer]:
    """Put spaces between the words of the Moses tokenizer."""
    number, letter = _char_class(moses.IsN), _char_class(moses.IsAlpha)
    inside = _char_class({*moses.IsAlnum, *" .'`,-"})
    return [
        _replace(f"[{_char_class(_spaces())}]+", " "),
        Strip(),
        _replace(rf"(?!\A)(?=[^{inside}])|(?<=[^{inside}])", " "),
        _replace(r"(?<=[^.])(?=\.\.)|(?<=\.\.)(?!\.)", " "),
        _replace(r"\.(?=\.)|(?<=\.)\.", _RUN_DOT),
        _replace(rf"[^{number}]\K,", " , "),
        _replace(f",(?![{number}])", " , "),
        _between(f"[^{letter}]", "'", f"[^{letter}]", " ' "),
        _between(f"[^{letter}{number}]", "'", f"[{letter}]", " ' "),
        _between(f"[{letter}]", "'", f"[^{letter}]", " ' "),
        _between(f"[{letter}]", "'", f"[{letter}]", " '"),
        _between(f"[{number}]", "'", "s", " '"),
        _split_final_dots(moses),
        _replace(r"\.'(?= *\z)", " . '"),
        # The original's own mark for a run of dots, which it also reads where a text contains that mark.
        _replace("DOT(?=(?:DOT){0,99}MULTI)", _RUN_DOT),
        _replace(f"(?<={_RUN_DOT})MULTI", ""),
        Replace(_RUN_DOT, "."),
    ]


def _split_final_dots(moses: Any) -> Normalizer:
    """Put a space before a word's final dot, unless it is an abbreviation or the next word begins in lower case."""
    numeric = set(moses.NUMERIC_ONLY_PREFIXES)
    abbreviations = sorted({*moses.NONBREAKING_PREFIXES} - numeric)
    exceptions = (
        rf"(?=[^ ]*[{_char_class(moses.IsAlpha)}])[^ .]*+\.[^ ]++(?<=\.)",
        rf"(?:{_any_of(abbreviations)})\.(?![^ ])",
        rf"(?:{_any_of(sorted(numeric))})\. +[0-9]",
        rf"[^ ]+\. +[{_char_class(moses.IsLower)}]",
    )
    return _replace(rf"(?<![^ ])(?!{'|'.join(exceptions)})[^ ]+\K\.(?![^ ])", " .")


def _lowercase_and_remove_accents() -> list[Normalizer]:
    ignored = r"\p{Case_Ignorable}*+"
    cased = r"[\p{Cased}&&\P{Case_Ignorable}]"
    return [
        _replace(rf"{cased}{ignored}\KΣ(?!{ignored}{cased})", "ς"),  # `Lowercase` does not produce the final sigma
        Lowercase(),
        NFD(),
        *_missing_decompositions(),
        _replace(f"[{_char_class(_of_category('Mn'))}]", ""),
    ]


def _missing_decompositions() -> list[Normalizer]:
    """Replace letters that Python's Unicode version decomposes and the older one of `NFD` does not."""
    composed = (character for character in _assigned() if unicodedata.decomposition(character)[:1] not in ("", "<"))
    pairs = ((character, unicodedata.normalize("NFD", character)) for character in composed)
    return [Replace(character, parts) for character, parts in pairs if NFD().normalize_str(character) != parts]


def _replace(pattern: str, content: str) -> Normalizer:
    return Replace(Regex(pattern), content)


def _between(left: str, mark: str, right: str, content: str) -> Normalizer:
    """Replace the mark between two characters, of which the right one is not the left one of the next match."""
    return _replace(rf"(?:\A|(?!\G)){left}\K{mark}(?={right})", content)


def _any_of(words: Iterable[str]) -> str:
    return "|".join(map(re.escape, words))


def _char_class(characters: Iterable[str]) -> str:
    """Return the characters as ranges, to be put between square brackets."""
    ranges: list[list[int]] = []
    for point in sorted(map(ord, characters)):
        if ranges and point <= ranges[-1][1] + 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "".join(rf"\x{{{start:X}}}-\x{{{end:X}}}" for start, end in ranges)


@functools.cache
def _by_category() -> dict[str, list[str]]:
    """Return all characters by Unicode category, without surrogates, which UTF-8 does not have."""
    categories: dict[str, list[str]] = {}
    for character in map(chr, range(sys.maxunicode + 1)):
        categories.setdefault(unicodedata.category(character), []).append(character)
    return {category: characters for category, characters in categories.items() if category != "Cs"}


def _of_category(start: str) -> list[str]:
    """Return the characters whose category begins with `start`."""
    return [*chain.from_iterable(letters for category, letters in _by_category().items() if category.startswith(start))]


def _assigned() -> list[str]:
    return [
        *chain.from_iterable(letters for category, letters in _by_category().items() if category not in ("Cn", "Co"))
    ]


def _spaces() -> list[str]:
    return [character for character in _assigned() if character.isspace()]
