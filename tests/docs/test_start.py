"""The commands of the README run on a fresh machine, and docs/start.md begins with them."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
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


def test_the_commands_of_the_readme_run_as_they_are_written(tmp_path: Path) -> None:
    """The export of the set-up, whose environment the tests have already; the quick start; a BERT."""
    from support.guide_inputs import bert_on_my_corpus

    set_up, quick_start, whitening, tests = commands_of(fences_of((ROOT / "README.md").read_text("utf-8")))
    assert tests.content == "python -m pip install -c constraints.txt -e '.[test]' && python -m pytest\n"
    *installation, export = set_up.content.split(" &&\n")
    assert [line.split()[0] for line in installation] == ["python3", ".", "python"]
    (folder := tmp_path / "folder").mkdir()
    bert_on_my_corpus(folder, tmp_path / "hub")
    code, printed = run_fences(
        [replace(set_up, content=export), quick_start, whitening],
        folder,
        tmp_path / "shell",
        {"COLUMNS": "100", "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
    )
    assert code == 0, printed
    assert "bundles/minilm" in printed[0]
    assert "bundles/bert-base-l1-l12" in printed[2]
    shown = next(fence for fence in fences_of((ROOT / "README.md").read_text("utf-8")) if fence.language == "text")
    np.testing.assert_allclose(matrix(printed[1]), matrix(shown.content), atol=0.011)


def matrix(text: str) -> list[list[float]]:
    """Return the numbers of an array that numpy printed."""
    return [[float(number) for number in re.findall(r"-?\d+\.\d*", line)] for line in text.splitlines()]
