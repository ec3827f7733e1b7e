"""docs/start.md shows the commands of the README, which run on a fresh machine."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def snippets(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("language", ["bash", "python"])
def test_the_first_snippets_are_the_readmes(language: str) -> None:
    assert snippets("docs/start.md", language)[0] == snippets("README.md", language)[0]


def test_the_home_page_leads_to_every_page_of_the_documentation() -> None:
    home = (ROOT / "docs" / "README.md").read_text("utf-8")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert sorted(page for page in pages if f"]({page})" not in home) == []
