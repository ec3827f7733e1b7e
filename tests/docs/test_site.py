"""The web site of the documentation: every page and link is there, and search works from disk."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_tabs_are_the_rows_of_the_map_in_the_readme() -> None:
    table = (ROOT / "README.md").read_text("utf-8").partition("## Documentation\n")[2].partition("\n\n*")[0]
    rows = re.findall(r"^\| (\w[^|]*) \| (.+) \|$", table, re.MULTILINE)
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2].partition("  - Benchmarks:")[0]
    tabs = re.findall(r"^  - (.+):\n((?:      - .+\n)+)", nav, re.MULTILINE)
    assert [(name, re.findall(r"\]\(([^)]+)\)", links)) for name, links in rows] == [
        (name, re.findall(r"- (.+)$", pages, re.MULTILINE)) for name, pages in tabs
    ]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra test-all")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    given = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # mkdocs-material's notice about its successor
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "docs" / "reference" / "api.html").read_text("utf-8")
    assert 'id="encoderencode"' in api
    commands = (tmp_path / "docs" / "reference" / "commands.html").read_text("utf-8")
    assert 'id="whiten-embed-many"' in commands
    home = (tmp_path / "index.html").read_text("utf-8")
    styles = re.findall(r'<link rel="stylesheet" href="([^":]+)"', home)
    assert [name for name in styles if not (tmp_path / name).is_file()] == []
    assert (tmp_path / "search" / "search_index.js").stat().st_size > 100_000
