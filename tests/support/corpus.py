"""Local text on which the tests' vocabularies are trained, and which they embed."""

from collections.abc import Iterator
from itertools import islice

from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus

ALPHABETS = "abcdefghijklmnopqrstuvwxyzäöüßéñ абвгдежзийклмнопрст 今日天気 الطقس 고양이 แมว 👩👧🐬 0123456789 .,;:!?%"


def sentences(count: int) -> list[str]:
    return list(islice(Corpus((BUILTIN_CORPUS,), None, count), count))


def training_text() -> Iterator[str]:
    yield ALPHABETS
    yield from sentences(2000)
