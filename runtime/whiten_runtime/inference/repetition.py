"""Find regular expressions in a tokenizer that would take time exponential in the length of a text.

Oniguruma, which the tokenizers package matches with, gives up after 10,000,000 steps from one character, half a second,
and tries the next character otherwise: with `(a+)+$`, every character of a text can take nearly so long.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from whiten_runtime.errors import BundleError

_QUANTIFIER = re.compile(r"([*+?])[?+]?|\{(\d*)(,?)(\d*)\}\??")
_ITEM = re.compile(r"\\[pPxu]\{[^}]*\}|\\.|\(\?#[^)]*\)|\(\?(?:[a-zA-Z-]*:|<?[=!>]|<\w+>)|.", re.DOTALL)


def check_ends(backend: Tokenizer, what: str) -> None:
    """Check that no regular expression of a tokenizer repeats a repetition, as in (a+)+."""
    for step in (backend.normalizer, backend.pre_tokenizer, backend.decoder):
        for pattern in _patterns(json.loads(step.__getstate__())) if step is not None else ():
            if repeats_repetition(pattern):
                raise BundleError(
                    f"{what}: the tokenizer's regular expression '{pattern[:80]}' repeats a repetition, as (a+)+ does, "
                    "so that a text could take it hours; write it without, such as a+"
                )


def repeats_repetition(pattern: str) -> bool:
    """Return whether a repetition without end repeats a group of which a repetition without end is all that must match.

    (a+)+ and (a+b?)+ are such. (,a+)+ is not: each comma begins one turn.
    """
    groups, item, position = [_Group()], None, 0  # item: whether the item before is a repetition; None after it is told
    while position < len(pattern):
        group = groups[-1]
        if found := _QUANTIFIER.match(pattern, position):
            endless = found[1] in ("*", "+") or (found[3] == "," and not found[4])
            if endless and item:
                return True
            if endless or item:
                group.repeats = True
            elif item is not None and found[1] != "?" and found[2] != "0":
                group.needs_more = True
            position, item = found.end(), None
            continue
        group.add(item)
        if pattern[position] == "[":
            position, item = _after_class(pattern, position), False
            continue
        read = _ITEM.match(pattern, position)
        assert read is not None
        position, item, text = read.end(), False, read[0]
        if text == "|":
            group.end_alternative()
            item = None
        elif text == ")" and len(groups) > 1:
            group.end_alternative()
            item = groups.pop().is_repetition
        elif text.startswith("("):
            item = None
            if not text.startswith("(?#"):
                groups.append(_Group())
    return False


@dataclass
class _Group:
    """Holds what was read of a group."""

    repeats: bool = False  # whether this alternative has a repetition without end
    needs_more: bool = False  # whether it needs anything else to match
    is_repetition: bool = False  # whether a repetition is all that some alternative needs

    def add(self, item: bool | None) -> None:
        """Add an item without a quantifier: whether it is a repetition; None for no item."""
        self.repeats |= item is True
        self.needs_more |= item is False

    def end_alternative(self) -> None:
        """End an alternative."""
        self.is_repetition |= self.repeats and not self.needs_more
        self.repeats = self.needs_more = False


def _after_class(pattern: str, position: int) -> int:
    """Return the place after a class of characters, such as [a-z]; one may lie in another."""
    depth = 0
    while position < len(pattern):
        character = pattern[position]
        depth += (character == "[") - (character == "]")
        position += 2 if character == "\\" else 1
        if not depth:
            break
    return position


def _patterns(part: Any) -> Iterator[str]:
    """Yield the regular expressions in a part of a tokenizer's file."""
    if isinstance(part, dict):
        if isinstance(found := part.get("Regex"), str):
            yield found
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from _patterns(one)
