"""Tokens of a text, and texts of tokens."""

import pytest

from support.corpus import NASTY
from support.vectors import token_ids
from whiten import Encoder
from whiten_runtime.errors import UsageError


@pytest.mark.parametrize("text", NASTY)
def test_tokens_are_those_that_are_embedded(tiny: Encoder, text: str) -> None:
    found = tiny.tokens(text)
    assert len(found) == tiny.token_count(text)
    assert [one.id for one in found][: tiny.max_seq_length - 1] == token_ids(tiny, [text])[0][
        : min(len(found), tiny.max_seq_length - 1)
    ]
    assert [one for one in found if not one.special] == tiny.tokens(text, special=False)
    assert all(0 <= one.start <= one.end <= len(text) for one in found)


def test_ids_are_decoded(tiny: Encoder) -> None:
    ids = [one.id for one in tiny.tokens("hello there")]
    assert tiny.decode(ids) == "hello there"
    assert tiny.decode(ids, skip_special=False).startswith("[CLS]")
    assert tiny.decode([]) == ""


@pytest.mark.parametrize("bad", [-1, 10**6, 2**40])
def test_ids_that_are_none(tiny: Encoder, bad: int) -> None:
    with pytest.raises(UsageError, match=f"token id {bad} is not in the vocabulary"):
        tiny.decode([bad])
