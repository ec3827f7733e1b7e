"""Take the part of a long text whose tokens are kept, at a place where no token depends on both sides.

A text of ten million characters would be tokenised whole to keep its first 512 tokens. A part of it gives the same
tokens if it is cut where the tokenizer cuts too. Where that is depends on the kind of tokenizer; there are three:

- WordPiece with BERT's normaliser and splitter (`chunked.is_chunked`): every blank, tab, newline and carriage return.
  Where there is none, every Chinese character is a word of its own, because the normaliser puts blanks around it.
- Other models whose splitter always cuts at a blank: a single blank between two plain letters or digits, `_PLAIN`.
  - Normalisers of one character, of one grapheme (Precompiled) and Unicode's normal forms do not see beyond it: a blank
    never composes with a letter, and plain letters are starters and graphemes of their own. Those that strip or replace
    runs of white space leave a single blank between letters as it is. That a table does so too is tried at each place.
  - No pattern of the splitters listed here matches both a letter and a blank after it; where one looks ahead
    (`\\s+(?!\\S)`, `n't`), it looks no further than the first character that is no letter.
  - Models see one piece of the splitter at a time.
  - The splitters of GPT-2, Llama 3 and Qwen 2 also cut between a letter and an ASCII or Chinese mark or an ASCII digit
    after it, whatever is around; Unicode's form C changes neither. Added tokens must not be near: they come first.
- Everything else: no place. Such texts are tokenised whole; `max_characters` bounds them.

An added token that contains a blank, or takes the blanks beside it and ends with a letter, makes a tokenizer one of the
last kind. The part after such a place begins with the blank, which gives its first word the mark of a word's beginning:
where a normaliser strips that blank, and the splitter does not put the mark at every text's beginning, there is no such
part.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordPiece
from tokenizers.normalizers import Normalizer

from whiten_runtime.bundle.manifest import Side
from whiten_runtime.inference.chunked import is_chunked
from whiten_runtime.inference.tokenizer_parts import (
    adds_ends,
    as_json,
    cuts_at_blanks,
    cuts_at_marks,
    ignores_beginning,
    is_apart,
    is_model,
    keeps_blanks,
    strips_beginning,
)

_PLAIN = "0-9A-Za-zÀ-ÖØ-öø-ʯΑ-ΡΣ-ώА-ҁҊ-ӿא-תء-غف-يक-हก-ฮぁ-ゖァ-ヺ一-鿿가-힣"
"""Letters and digits that are starters of Unicode's normal forms, whole graphemes, and letters to every splitter."""

_BETWEEN_PLAIN = re.compile(f"(?<=[{_PLAIN}]) (?=[{_PLAIN}])")

_BLANK = re.compile("[ \t\n\r]")

_CHINESE = re.compile("[一-鿿]")
"""Characters that BERT's normaliser puts blanks around; some others, which are rare, are left out."""

_MARK_AFTER_LETTER = re.compile(
    r"(?<=[A-Za-z一-鿿ぁ-ゖァ-ヺ가-힣])(?=[!-@\[-`{-~、。「」\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f])"
)

_NEAR = 4096
"""Characters before the wanted length in which a place is looked for."""


@dataclass(frozen=True)
class Places:
    """Finds the places at which a text can be cut without changing the tokens on either side.

    Attributes:
        pattern: a character before or at such places.
        alone: characters that are words of their own, or places without a character, for texts in which the pattern is
            not found; None for none.
        tokens: added tokens that must not be near a place without a character.
        longest_word: characters beyond which a word of ASCII letters and digits is the unknown token, however long it
            is; None if that is not so.
        normalizer: normaliser that has to keep what is beside a place, such as one with a table of its own; or None.
        both_sides: whether the part after a place has its own tokens too, and not that before it alone.
    """

    pattern: re.Pattern[str]
    alone: re.Pattern[str] | None = None
    tokens: tuple[str, ...] = ()
    longest_word: int | None = None
    normalizer: Normalizer | None = None
    both_sides: bool = True

    def part(self, text: str, size: int, side: Side) -> str | None:
        """Return about the first `size` characters of a text, or the last ones if `side` is "left", cut at a place.

        Returns:
            None if no place is near.
        """
        if side == "left" and not self.both_sides:
            return None
        if side == "left":
            start = max(0, len(text) - size)
            found = self.pattern.search(text, start, start + _NEAR)
            if found is not None and self._stands(text, found.start()):
                return text[found.start() :]
            found = next(self._others(text, start, start + _NEAR), None)
            return None if found is None else text[found.start() :]
        start, end = max(0, size - _NEAR), size + 1
        found = _last(self.pattern.finditer(text[:end], start))
        if found is not None and self._stands(text, found.start()):
            return text[: found.start()]
        found = _last(self._others(text, start, end))
        return None if found is None else text[: found.end()]

    def _others(self, text: str, start: int, end: int) -> Iterator[re.Match[str]]:
        if self.alone is None:
            return
        reach = max(map(len, self.tokens), default=0)
        tokens = [token for token in self.tokens if token in text[max(0, start - reach) : end + reach]]
        for found in self.alone.finditer(text, start, end):
            near = text[max(0, found.start() - reach) : found.end() + reach]
            if not any(token in near for token in tokens):
                yield found

    def _stands(self, text: str, place: int) -> bool:
        """Return whether the normaliser keeps the letters on both sides of a place apart."""
        if self.normalizer is None:
            return True
        both = self.normalizer.normalize_str(text[place - 1 : place + 2]).split(" ")
        return len(both) == 2 and all(both)

    def shortened(self, text: str) -> str:
        """Return the text with the middle of very long words of ASCII letters and digits left out.

        Such a word is the unknown token before and after: all of its characters are those of one word, none is removed
        or becomes two, and both have more of them than the model takes in a word.
        """
        if self.longest_word is None:
            return text
        kept = f"[0-9A-Za-z]{{{self.longest_word + 1}}}"
        return re.sub(f"(?<![0-9A-Za-z])({kept})[0-9A-Za-z]+({kept})", r"\1\2", text)


def places_of(backend: Backend) -> Places | None:
    """Return where texts can be cut for a tokenizer, or None if nothing is known about its kind."""
    added = list(backend.get_added_tokens_decoder().values())
    if is_chunked(backend):
        return Places(
            _BLANK,
            _CHINESE if backend.normalizer.handle_chinese_chars else None,
            longest_word=_longest_word(backend.model, added),
        )
    normalizer, splitter = as_json(backend.normalizer), as_json(backend.pre_tokenizer)
    known = (
        is_model(backend.model)
        and keeps_blanks(normalizer)
        and cuts_at_blanks(splitter)
        and adds_ends(as_json(backend.post_processor))
        and all(is_apart(token, backend.normalizer) for token in added)
    )
    if not known:
        return None
    tokens = tuple(token.content for token in added)
    both_sides = not strips_beginning(normalizer) or ignores_beginning(splitter)
    return Places(_BETWEEN_PLAIN, _marks(backend, added), tokens, None, backend.normalizer, both_sides)


def _last(found: Iterable[re.Match[str]]) -> re.Match[str] | None:
    last = None
    for match in found:
        last = match
    return last


def _longest_word(model: WordPiece, added: Iterable[AddedToken]) -> int | None:
    """Return the length of the longest word or added token; None if an added token can be in the middle of a word."""
    contents = [token.content for token in added]
    if any(content.isalnum() for content in contents):
        return None
    return max([model.max_input_chars_per_word, *map(len, contents)])


def _marks(backend: Backend, added: Iterable[AddedToken]) -> re.Pattern[str] | None:
    """Return places at marks, if the splitter cuts there and neither normaliser nor added tokens are in the way."""
    splitter, normalizer = as_json(backend.pre_tokenizer), as_json(backend.normalizer)
    steps = (splitter or {}).get("pretokenizers", [splitter])
    cuts = any(step is not None and cuts_at_marks(step) for step in steps)
    begins = not any(step is not None and step.get("add_prefix_space") for step in steps)
    plain = normalizer is None or normalizer["type"] == "NFC"
    seen = normalizer is None or not any(token.normalized and not token.content.isspace() for token in added)
    return _MARK_AFTER_LETTER if cuts and begins and plain and seen else None
