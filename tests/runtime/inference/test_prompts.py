"""Test prompts: which one a text gets, and how it is applied."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whiten import UsageError
from whiten_runtime.inference.prompts import DOCUMENT, QUERY, Prompts, with_prompt

ANY_TEXT = st.text(st.characters(codec=None), max_size=20)
PIECES = st.lists(st.sampled_from(["{text}", "{", "}", "{{text}}", "%s", "\\1", "\ud83d", "a "]) | ANY_TEXT, max_size=6)
TEXTS = PIECES.map("".join)
NAMED = Prompts({"query": "query: ", "passage": "passage: ", "empty": ""}, "passage")
TEMPLATE = 'Summarize sentence "{text}" in one word:"'


def test_default_prompt_is_applied_unless_another_is_asked_for() -> None:
    assert NAMED.resolve() == "passage: "
    assert NAMED.resolve("query") == "query: "
    assert NAMED.resolve("empty") == ""
    assert NAMED.resolve(prompt="Frage: ") == "Frage: "
    assert NAMED.resolve(prompt="") == ""
    assert Prompts().resolve() == ""
    assert Prompts({"query": "query: "}).resolve() == ""


def test_unknown_name_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(UsageError, match="prompt_name is 'Query', but the bundle's prompts are: 'query', 'passage'"):
        NAMED.resolve("Query")
    with pytest.raises(UsageError, match="the bundle's prompts are: none; or pass prompt=TEXT"):
        Prompts().resolve("query")


def test_name_and_text_together_are_refused() -> None:
    for prompt in ("Frage: ", ""):
        with pytest.raises(UsageError, match="prompt and prompt_name 'query' were both given"):
            NAMED.resolve("query", prompt)


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


def test_default_prompt_does_not_stand_in_for_that_of_a_task_but_a_default_template_does() -> None:
    assert Prompts({"sts": "similar: "}, "sts").for_task(*QUERY) == ""
    assert Prompts({"angle": TEMPLATE}, "angle").for_task(*QUERY) == TEMPLATE
    assert Prompts({"angle": TEMPLATE, "query": "q: "}, "angle").for_task(*QUERY) == "q: "
    assert Prompts().for_task(*DOCUMENT) == ""


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


def test_text_that_is_a_template_itself_stays_whole() -> None:
    assert with_prompt("<{text}>", ["{text}", "a{text}b{text}"]) == ["<{text}>", "<a{text}b{text}>"]
    assert with_prompt("Q: ", ["{text}"]) == ["Q: {text}"]
    assert with_prompt("", ["{text}"]) == ["{text}"]
