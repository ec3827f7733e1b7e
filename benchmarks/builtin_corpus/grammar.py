"""Generate English sentences of seven kinds from a small grammar; the same seed gives the same sentences everywhere."""

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from benchmarks.builtin_corpus.kinds import KINDS
from benchmarks.builtin_corpus.words import ANIMALS, MOVES, NOUNS, PERSONS, VERBS

_T = TypeVar("_T")

_SLOT = re.compile(r"\{([a-z_.]+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])(?!one\b|uniform|union|useful|used|European)")
_FORMS = {"base": 0, "s": 1, "ing": 2, "past": 3}
_LETTER_CASE_KEPT = frozenset({"chat"})


class Grammar:
    """Expands patterns such as "{one} is {do.ing} {place}." into sentences.

    Args:
        seed: seed of the random choices. Only `random.Random.random` is used, whose results never change.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random
        self._slots: Mapping[str, Callable[[], str]] = {
            "one": self._one,
            "many": self._many,
            "person": lambda: f"{self._pick(('the', 'a', 'his', 'her'))} {self._pick(tuple(PERSONS))}",
            "animal": lambda: f"a {self._pick(tuple(ANIMALS))}",
            "creature": lambda: f"a {self._maybe('fur')}{self._pick(tuple(ANIMALS))}",
            "creatures": lambda: f"{self._pick(('two', 'three', 'some', 'the'))} {self._pick(tuple(ANIMALS.values()))}",
            "persons": lambda: self._pick(tuple(PERSONS.values())),
            "animals": lambda: self._pick(tuple(ANIMALS.values())),
        }

    def sentence(self, kind: str) -> str:
        """Return a sentence of a kind."""
        text = self._expand(self._pick(KINDS[kind]))
        text = _ARTICLE.sub(r"\1n ", text)
        return text if kind in _LETTER_CASE_KEPT else text[0].upper() + text[1:]

    def _expand(self, pattern: str) -> str:
        return _SLOT.sub(lambda match: self._fill(match[1]), pattern)

    def _fill(self, slot: str) -> str:
        if slot in self._slots:
            return self._slots[slot]()
        name, _, form = slot.partition(".")
        if name == "do":
            verb = self._pick(VERBS)
            return f"{verb[_FORMS[form]]} {self._fill(verb[4])}" if verb[4] else verb[_FORMS[form]]
        if name == "move":
            return self._pick(MOVES)[_FORMS[form]]
        return self._expand(self._pick(NOUNS[slot]))

    def _pick(self, options: Sequence[_T]) -> _T:
        return options[int(self._random() * len(options))]

    def _maybe(self, slot: str) -> str:
        return f"{self._fill(slot)} " if self._random() < 0.5 else ""

    def _one(self) -> str:
        who = f"{self._pick(('a', 'a', 'the', 'one'))} {self._maybe('looks')}{self._pick(tuple(PERSONS))}"
        return who + self._wearing()

    def _many(self) -> str:
        count = self._pick(("two", "three", "some", "several", "the", "many", "a group of"))
        return f"{count} {self._maybe('looks')}{self._pick(tuple(PERSONS.values()))}"

    def _wearing(self) -> str:
        return f" in a {self._fill('colour')} {self._fill('clothes')}" if self._random() < 0.25 else ""


def generate(seed: int, counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield kind and sentence, `counts[kind]` different sentences of each kind."""
    grammar = Grammar(seed)
    for kind, count in counts.items():
        seen: set[str] = set()
        while len(seen) < count:
            sentence = grammar.sentence(kind)
            if sentence not in seen:
                seen.add(sentence)
                yield kind, sentence
