"""The web site of the documentation: builds without a warning, needs no network, and every link leads somewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.html_pages import HtmlPage, broken_links, loaded_from_elsewhere, read_page, read_site
from support.once import once

pytestmark = pytest.mark.slow

pytest.importorskip("mkdocs", reason="needs the extra test-all")
markdown_it = pytest.importorskip("markdown_it", reason="needs the extra test-all")

ROOT = Path(__file__).parents[2]
COUNTED = ("h1", "h2", "h3", "h4", "table", "tr", "ul", "ol", "li", "pre", "blockquote", "img")
"""Elements that a page has as often on a code host as on the site."""


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    environment["NO_MKDOCS_2_WARNING"] = "1"  # mkdocs-material's notice about its successor
    given = os.environ | environment
    return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        done = build(folder)
        assert done.returncode == 0, done.stderr
        assert "WARNING" not in done.stderr, done.stderr

    return once(tmp_path_factory, "site", make).resolve()


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, HtmlPage]:
    return read_site(site)


def test_every_page_is_there(site: Path) -> None:
    made = {file.relative_to(site).as_posix() for file in site.rglob("*.html")}
    assert {"index.html", "start.html", "project/index.html", "project/SECURITY.html"} <= made
    assert {"reference/commands.html", "benchmarks/peers/table.html", "clients/js/index.html"} <= made
    sources = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md"), *ROOT.glob("*.md")]
    assert len(made) >= len(sources) > 60


def test_nothing_is_loaded_from_other_hosts(site: Path, pages: dict[Path, HtmlPage]) -> None:
    assert list(loaded_from_elsewhere(site, pages)) == []


def test_every_link_leads_somewhere(pages: dict[Path, HtmlPage]) -> None:
    assert sum(len(page.links) for page in pages.values()) > 5000
    assert list(broken_links(pages)) == []


def test_links_to_source_files_lead_into_the_clone(site: Path) -> None:
    text = (site / "guides" / "whitening.html").read_text("utf-8")
    link = os.path.relpath(ROOT / "runtime" / "whiten_runtime" / "files" / "english-1.NOTICE", site / "guides")
    assert f'href="{link}"' in text


def test_search_works_from_disk(site: Path) -> None:
    """Pages read from disk cannot fetch the index: it is a script, and a frame takes the worker's place."""
    assert (site / "search" / "search_index.js").stat().st_size > 100_000
    assert "assets/iframe-worker.js" in (site / "index.html").read_text("utf-8")


def counts(page: HtmlPage) -> dict[str, int]:
    return {tag: page.elements[tag] for tag in COUNTED}


@pytest.mark.parametrize(
    "page", [path.relative_to(ROOT).as_posix() for path in (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md")]
)
def test_pages_are_as_on_a_code_host(page: str, site: Path, pages: dict[Path, HtmlPage]) -> None:
    """Markdown's dialects differ, as in lists without a blank line before them: nothing may depend on that."""
    there = read_page(
        f"<article>{markdown_it.MarkdownIt().enable('table').render((ROOT / page).read_text('utf-8'))}</article>"
    )
    inside = page.removeprefix("docs/") if page.startswith("docs/") else f"project/{page}"
    name = f"{inside.removesuffix('README.md')}index.html" if inside.endswith("README.md") else f"{inside[:-3]}.html"
    here = pages[site / name]
    assert here.elements["h1"] == 1
    assert counts(here) == counts(there)


def test_a_repository_takes_the_place_of_the_clone(tmp_path: Path) -> None:
    done = build(tmp_path, WHITEN_REPO_URL="https://git.example.org/whiten")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "guides" / "whitening.html").read_text("utf-8")
    assert 'href="https://git.example.org/whiten/blob/main/runtime/whiten_runtime/files/english-1.NOTICE"' in text


BROKEN = {
    "gone.html": "<a href='nowhere.html'>gone</a>",
    "anchor.html": "<p id='here'></p><a href='#there'>gone</a>",
    "absolute.html": "<a href='/absolute.html'>gone</a>",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_links_are_found(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(BROKEN[name], "utf-8")
    (tmp_path / "good.html").write_text("<a id='a' href='#a'></a><a href='good.html'></a>", "utf-8")
    assert [line for line in broken_links(read_site(tmp_path)) if name in line] != []
    assert [line for line in broken_links(read_site(tmp_path)) if "good.html" in line.split(": ")[0]] == []


def test_what_is_loaded_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<script src='https://example.org/x.js'></script>", "utf-8")
    (tmp_path / "page.css").write_text("@import 'https://example.org/x.css'; a{b:url(//example.org/x.woff)}", "utf-8")
    assert len(list(loaded_from_elsewhere(tmp_path, read_site(tmp_path)))) == 3
