"""docs/start.md shows the commands of the README, which run on a fresh machine."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from support.guides import commands_of, fences_of, run_fences

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


def test_the_first_commands_of_the_readme_run_as_they_are_written(tmp_path: Path) -> None:
    """The export of the set-up, which the environment of the tests was made for, and the quick start on its bundle."""
    set_up, tests, quick_start = commands_of(fences_of((ROOT / "README.md").read_text("utf-8")))[:3]
    assert tests.content == "python -m pip install -c constraints.txt -e '.[test]' && python -m pytest\n"
    *installation, export = set_up.content.split(" &&\n")
    assert [line.split()[0] for line in installation] == ["python3", ".", "python"]
    code, printed = run_fences(
        [replace(set_up, content=export), quick_start], tmp_path, tmp_path / "shell", {"COLUMNS": "100"}
    )
    assert code == 0, printed
    assert "bundles/minilm-l0-l1" in printed[0]
    rows = [[float(number) for number in re.findall(r"-?\d+\.\d*", line)] for line in printed[1].splitlines()]
    assert [rows[index][index] for index in range(3)] == [1, 1, 1]
    assert rows[0][1] > max(rows[0][2], rows[1][2]) + 0.2
