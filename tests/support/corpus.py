"""Local text on which the tests' vocabularies are trained, and which they embed."""

from collections.abc import Iterator
from itertools import islice

from whiten_runtime.files.builtin import builtin_sentences

ALPHABETS = "abcdefghijklmnopqrstuvwxyzäöüßéñ абвгдежзийклмнопрст 今日天気 الطقس 고양이 แมว 👩👧🐬 0123456789 .,;:!?%"


def sentences(count: int) -> list[str]:
    """Return docstrings of the built-in corpus: text of one kind, on which small random networks behave alike."""
    return list(islice((sentence for kind, sentence in builtin_sentences() if kind == "docstring"), count))


def training_text() -> Iterator[str]:
    yield ALPHABETS
    yield from sentences(2000)
