"""Local text on which the tests' vocabularies are trained, and which they embed."""

import gzip
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ALPHABETS = "abcdefghijklmnopqrstuvwxyzäöüßéñ абвгдежзийклмнопрст 今日天気 الطقس 고양이 แมว 👩👧🐬 0123456789 .,;:!?%"


@cache
def _docstrings() -> tuple[str, ...]:
    path = Path(__file__).parents[1] / "data" / "docstrings.txt.gz"
    return tuple(gzip.decompress(path.read_bytes()).decode("utf-8").splitlines())


def sentences(count: int) -> list[str]:
    """Return sentences of the docstrings of Python 3.11, on which the golden bundle in tests/data was fitted."""
    return list(_docstrings()[:count])


def training_text() -> Iterator[str]:
    yield ALPHABETS
    yield from sentences(2000)
