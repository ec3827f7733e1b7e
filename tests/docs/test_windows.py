"""Cut texts into windows with the functions of the pages: no sentence is lost, and no window is too long."""

import itertools
import random
import re
from pathlib import Path
from typing import Any

import pytest

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
LONGEST = 20


class Words:
    """Count words, in place of an encoder's tokens."""

    max_seq_length = LONGEST

    def token_count(self, texts: list[str]) -> list[int]:
        return [len(text.split()) for text in texts]


def function(page: str, name: str) -> Any:
    text = (HOWTO / f"{page}.md").read_text("utf-8")
    code = re.search(rf"^def {name}.*?\n(?=\n\n|\S)", text, re.MULTILINE | re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {"re": re, "Encoder": Words, "LONGEST": LONGEST}
    exec(code[0], names)
    return names[name]


@pytest.mark.parametrize(("page", "name"), [("long-documents", "windows"), ("rag", "passages")])
def test_windows_hold_every_sentence_and_are_not_cut(page: str, name: str) -> None:
    windows, draw, encoder = function(page, name), random.Random(0), Words()
    for lengths in [[15, 15, 15], [19, 2, 19, 1, 20], *([draw.randint(1, 20) for _ in range(40)] for _ in range(20))]:
        sentences = [" ".join([f"s{number}", *["w"] * (length - 1)]) + "." for number, length in enumerate(lengths)]
        parts = windows(" ".join(sentences), encoder)
        assert max(encoder.token_count(parts)) <= LONGEST
        assert [sentence for sentence in sentences if not any(sentence in part for part in parts)] == []
        assert all(first != second for first, second in itertools.pairwise(parts))


def test_windows_without_overlap_repeat_nothing() -> None:
    windows = function("long-documents", "windows")
    assert windows("A a a a a a. " * 10, Words(), overlap=0) == ["A a a a a a. A a a a a a. A a a a a a."] * 3 + [
        "A a a a a a."
    ]
