"""Tell from the parts of a tokenizer, as `tokenizer.json` has them, what they do at a blank between letters.

`long_texts` says why that matters. A part that is not known here is taken to do anything.
"""

import json
from typing import Any

from tokenizers import AddedToken
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece
from tokenizers.normalizers import Normalizer

_NORMALIZERS = frozenset(
    ("BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase", "Nmt", "Precompiled", "Strip")
)
_REPLACED = frozenset((r"\s{2,}|[\n\r\t]", " {2,}", r"\s{2,}"))
"""Patterns of white space that leave a single blank between letters as it is."""

_SPLITTERS = frozenset(("BertPreTokenizer", "Whitespace", "WhitespaceSplit"))
_MARKS_ONLY = frozenset(("Digits", "Punctuation"))
"""Splitters that cut at other places than blanks, and never join what is apart."""

WITH_BLANK = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = (
    r"[\p{L}\p{M}]+(?=n['@]t(?![\p{L}\p{M}]))|n['@]t(?![\p{L}\p{M}])"
    r"|['@](?:s|re|ve|ll|d|m|S|RE|VE|LL|D|M)(?![\p{L}\p{M}])|\p{N}+(?:[.,]\p{N}+)*|[\p{L}\p{M}\p{N}_]+"
    r"|[^\s\p{L}\p{M}\p{N}_]"
).replace("@", "\u2019")
PATTERNS = {
    _GPT2: "Isolated",
    WITH_BLANK % "{1,3}": "Isolated",
    WITH_BLANK % "": "Isolated",
    WORDS: "Removed",
}
"""Patterns of splitters that cut at a blank between letters or digits, and what they do with a match: GPT-2's, those of
Llama 3 and Qwen 2, and that of word vectors."""


def is_model(model: Any) -> bool:
    """Return whether a model sees one piece of the splitter at a time, and gives it the same tokens each time."""
    if isinstance(model, BPE):
        return not model.dropout
    return isinstance(model, Unigram | WordLevel | WordPiece)


def as_json(component: Any) -> dict[str, Any] | None:
    """Return a component of a tokenizer as `tokenizer.json` has it."""
    described: dict[str, Any] | None = None if component is None else json.loads(component.__getstate__())
    return described


def keeps_blanks(normalizer: dict[str, Any] | None) -> bool:
    """Return whether a normaliser leaves a single blank between letters as it is."""
    if normalizer is None:
        return True
    kind = normalizer["type"]
    if kind == "Sequence":
        return all(map(keeps_blanks, normalizer["normalizers"]))
    if kind == "Replace":
        ((how, pattern),) = normalizer["pattern"].items()
        content = normalizer["content"]
        if how == "Regex":
            return pattern in _REPLACED or (pattern == r"\s+" and content == " ")
        return " " not in pattern
    return kind in _NORMALIZERS


def strips_beginning(normalizer: dict[str, Any] | None) -> bool:
    """Return whether a normaliser removes a blank that a text begins with."""
    if normalizer is None:
        return False
    if normalizer["type"] == "Sequence":
        return any(map(strips_beginning, normalizer["normalizers"]))
    return normalizer["type"] == "Strip" and bool(normalizer["strip_left"])


def ignores_beginning(splitter: dict[str, Any] | None) -> bool:
    """Return whether a splitter gives a text the same pieces with and without a blank before it."""
    if splitter is None:
        return False
    kind = splitter["type"]
    if kind == "Sequence":
        return all(map(ignores_beginning, splitter["pretokenizers"]))
    if kind == "Metaspace":
        return bool(splitter["prepend_scheme"] == "always")
    if kind == "ByteLevel":
        return bool(splitter["add_prefix_space"])
    if kind == "Split":
        return bool(splitter["behavior"] == "Removed")
    return kind in _SPLITTERS or kind in _MARKS_ONLY


def cuts_at_blanks(splitter: dict[str, Any] | None) -> bool:
    """Return whether a blank between letters always ends a piece; steps after the one that cuts there cannot join."""
    if splitter is None:
        return False
    kind = splitter["type"]
    if kind == "Sequence":
        steps = splitter["pretokenizers"]
        return all(map(_is_known, steps)) and any(map(cuts_at_blanks, steps))
    if kind == "Metaspace":
        return bool(splitter["split"])
    if kind == "ByteLevel":
        return bool(splitter["use_regex"])
    if kind == "Split":
        kept, inverted = PATTERNS.get(splitter["pattern"].get("Regex")), splitter["invert"]
        return kept is not None and kept == splitter["behavior"] and inverted == (kept == "Removed")
    return kind in _SPLITTERS


def _is_known(splitter: dict[str, Any]) -> bool:
    """Return whether a step of a sequence leaves the places as they are, whether it cuts there or not."""
    kind = splitter["type"]
    if kind == "Split":
        return cuts_at_blanks(splitter)
    return kind in _SPLITTERS or kind in _MARKS_ONLY or kind in ("Metaspace", "ByteLevel")


def adds_ends(processor: dict[str, Any] | None) -> bool:
    """Return whether a post-processor puts the same special tokens around every text, and else changes no token."""
    if processor is None:
        return True
    if processor["type"] == "Sequence":
        return all(map(adds_ends, processor["processors"]))
    if processor["type"] == "TemplateProcessing":
        return [piece["Sequence"]["id"] for piece in processor["single"] if "Sequence" in piece] == ["A"]
    return processor["type"] in ("BertProcessing", "RobertaProcessing", "ByteLevel")


def is_apart(token: AddedToken, normalizer: Normalizer | None) -> bool:
    """Return whether an added token never covers a single blank between letters, nor what is on one side of it."""
    found = token.content
    if token.normalized and normalizer is not None:
        found = normalizer.normalize_str(found)
    strips = token.lstrip or token.rstrip
    if not found or found.isspace():
        return len(found) > 1 and not strips
    if any(map(str.isspace, found)):
        return False
    return not (strips and any(text[end].isalnum() for text in (found, token.content) for end in (0, -1)))


def cuts_at_marks(splitter: dict[str, Any]) -> bool:
    """Return whether a splitter cuts between a letter and a mark after it, whatever is around."""
    if splitter["type"] == "Split":
        return bool(splitter["behavior"] == "Isolated")  # `PATTERNS` has no other with this behaviour
    return splitter["type"] == "ByteLevel" and bool(splitter["use_regex"])
