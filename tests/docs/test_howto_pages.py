"""Check the form of the task guides: which there are, how long they are, where they lead, what is not run."""

import re
from pathlib import Path

import pytest

from support.guides import RUN, commands_of, expected_of, fences_of, missing_lines

FOLDER = Path(__file__).parents[2] / "docs" / "howto"
NAMES = (
    *("api-vectors", "bert-on-my-corpus", "browser", "choose-layers", "codes", "gpu", "million-documents"),
    *("published-model", "refit-keeping-an-index", "serve"),
)
NOT_RUN = {"gpu": "needs an NVIDIA GPU"}
"""Guides with commands that cannot run on every machine, and why."""

LONGEST = 60
"""Lines of text, besides the fenced blocks and blank lines."""


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text("utf-8")


def test_these_are_the_guides() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.md")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_guide_is_short(name: str) -> None:
    text = re.sub(r"^```.*?^```$", "", text_of(name), flags=re.MULTILINE | re.DOTALL)
    assert len([line for line in text.splitlines() if line.strip()]) <= LONGEST


@pytest.mark.parametrize("name", NAMES)
def test_a_guide_says_what_is_needed_and_leads_on(name: str) -> None:
    text = text_of(name)
    for part in ("**You have**", "**You get**", "**Time**", "## If it goes wrong"):
        assert part in text
    assert re.search(r"\]\(\.\./(guides/|scale\.md|evaluation\.md)", text)
    assert re.search(r"\]\(\.\./reference/", text)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_run_or_says_why_not(name: str) -> None:
    fences = fences_of(text_of(name))
    marks = {fence.not_run for fence in fences if fence.not_run}
    assert marks == ({NOT_RUN[name]} if name in NOT_RUN else set())
    assert all(fence.language in (*RUN, "text") for fence in fences)
    assert text_of(name).count("```") == 2 * len(fences)  # none is indented, or opened and not closed
    assert commands_of(fences)
    assert list(expected_of(fences))


def test_figures_may_differ_and_words_may_not() -> None:
    printed = "whitened on 12,345 sentences\nspace 0123456789abcdef\n  4.5 kB in 3 files\nclose: fits"
    assert missing_lines("space ffffffffffffffff\n133.2 MB in 12 files", printed) == []
    assert missing_lines("whitened on 1 sentences\n…\nclose: …", printed) == []
    assert missing_lines("whitened on 1 texts", printed) == ["whitened on 1 texts"]
    assert missing_lines("close: fits\nwhitened on 3 sentences", printed) == ["whitened on 3 sentences"]


def test_blocks_are_found_in_order_with_their_marks() -> None:
    text = "```bash\na\n```\n\n```text\nb\n```\n\n<!-- not run: needs X -->\n```python\nc\n```\n\n```text\nd\n```\n"
    fences = fences_of(text)
    assert [(fence.language, fence.not_run) for fence in fences] == [
        ("bash", None),
        ("text", None),
        ("python", "needs X"),
        ("text", None),
    ]
    assert [fence.content for fence in commands_of(fences)] == ["a\n"]
    assert list(expected_of(fences)) == [(0, "b\n")]
