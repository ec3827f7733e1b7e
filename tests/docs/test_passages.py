"""Cut texts into passages with the function of the page: no sentence is lost, and no passage is too long."""

import itertools
import random
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "rag.md"
LONGEST = 20


class Words:
    """Count words, in place of an encoder's tokens."""

    max_seq_length = LONGEST

    def token_count(self, texts: list[str]) -> list[int]:
        return [len(text.split()) for text in texts]


def test_passages_hold_every_sentence_and_are_not_cut() -> None:
    code = re.search(r"^def passages.*?\n(?=\n\n|\S)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {"re": re, "Encoder": Words, "LONGEST": LONGEST}
    exec(code[0], names)
    draw, encoder = random.Random(0), Words()
    for lengths in [[15, 15, 15], [19, 2, 19, 1, 20], *([draw.randint(1, 20) for _ in range(40)] for _ in range(20))]:
        sentences = [" ".join([f"s{number}", *["w"] * (length - 1)]) + "." for number, length in enumerate(lengths)]
        parts = names["passages"](" ".join(sentences), encoder)
        assert max(encoder.token_count(parts)) <= LONGEST
        assert [sentence for sentence in sentences if not any(sentence in part for part in parts)] == []
        assert all(first != second for first, second in itertools.pairwise(parts))
