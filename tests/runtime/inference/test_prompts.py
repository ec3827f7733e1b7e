"""Test prompts: which one a text gets, and how it is applied."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whiten import UsageError
from whiten_runtime.inference.embedder import DOCUMENT, QUERY, Prompts, with_prompt

ANY_TEXT = st.text(st.characters(codec=None), max_size=20)
PIECES = st.lists(st.sampled_from(["{text}", "{", "}", "{{text}}", "%s", "\\1", "\ud83d", "a "]) | ANY_TEXT, max_size=6)
TEXTS = PIECES.map("".join)
NAMED = Prompts({"query": "query: ", "passage": "passage: ", "empty": ""}, "passage")
TEMPLATE = 'Summarize sentence "{text}" in one word:"'


@pytest.mark.parametrize("bad", [7, b"query: ", ["query: "]])
def test_prompt_that_is_no_text_is_refused(bad: Any) -> None:
    with pytest.raises(UsageError, match="wanted a str"):
        NAMED.resolve(prompt=bad)


@pytest.mark.parametrize("bad", [7, ["query"], {"query": "query: "}])
def test_name_that_is_no_text_is_refused(bad: Any) -> None:
    with pytest.raises(UsageError, match="prompt_name is"):
        NAMED.resolve(bad)


def test_template_cannot_be_left_out_of_the_pooling() -> None:
    apart = Prompts({"query": "query: ", "angle": TEMPLATE}, pooled=False)
    assert apart.resolve("query") == "query: "
    for arguments in ({"prompt_name": "angle"}, {"prompt": TEMPLATE}):
        with pytest.raises(UsageError, match="leaves prompts out of its pooling"):
            apart.resolve(**arguments)
    assert Prompts({"angle": TEMPLATE}).resolve("angle") == TEMPLATE


def test_task_takes_the_first_name_that_exists() -> None:
    assert NAMED.for_task(*QUERY) == "query: "
    assert NAMED.for_task(*DOCUMENT) == "passage: "
    assert Prompts({"corpus": "c: ", "passage": "p: "}).for_task(*DOCUMENT) == "p: "
    assert Prompts({"corpus": "c: ", "document": "", "passage": "p: "}).for_task(*DOCUMENT) == ""


@given(TEXTS.filter(lambda prompt: "{text}" not in prompt), st.lists(TEXTS, max_size=4))
def test_plain_prompt_is_put_before_any_text(prompt: str, texts: list[str]) -> None:
    assert list(with_prompt(prompt, texts)) == [prompt + text for text in texts]


@given(
    st.lists(ANY_TEXT.filter(lambda part: "{text}" not in part), min_size=2, max_size=4), st.lists(TEXTS, max_size=4)
)
def test_template_takes_any_text_as_it_is(parts: list[str], texts: list[str]) -> None:
    """A text's own {text} is not a place for another text."""
    template = "{text}".join(parts)
    if template.count("{text}") != len(parts) - 1:  # parts such as "{te" join to more of them
        return
    assert list(with_prompt(template, texts)) == [text.join(parts) for text in texts]
