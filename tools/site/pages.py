"""A hook of MkDocs: make the site of all Markdown pages of the repository, those outside docs/ too.

Pages keep their paths in the repository as their names, so that `nav` in mkdocs.yml and the links of the pages are
those of the files, and can be followed in a clone and on a code host too. Links to what is no page, such as source
files, lead to the repository at `repo_url` where there is one, else to the file in the clone that the site is built
from.
"""

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "clients/*/README.md", "examples/*/README.md")
PICTURES = ("docs/**/*.png", "docs/**/*.svg", "benchmarks/**/*.png", "benchmarks/**/*.svg")
ASSETS = ("favicon.svg", "iframe-worker.js", "site.css")
"""Files beside this one that every page loads, from assets/."""

_PROJECT = "project"
"""Folder of the site for the pages at the repository's root."""

_CLONE = "clone:"
"""Scheme of links to what is no page, while MkDocs checks the others."""

_MARKED = re.compile(rf'(?<==")({_CLONE})([^"#]*)(#[^"]*)?(?=")')
_TAG = re.compile(r"<(?:a|img|source)\b[^>]*>")
_TARGET = re.compile(r'(?<=\s)(href|src|srcset)="([^"]*)"')


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read links as the pages are rendered, and leave out the page of errors 404."""
    config.markdown_extensions.append(_EXTENSION)
    config.theme.static_templates.discard("404.html")  # its links hold on a server alone, at one address
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the pages and pictures of the whole repository instead of those of docs/."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for path in (*_found(PAGES), *_found(PICTURES)):
        files.append(File(path, str(ROOT), config.site_dir, False, dest_uri=destination(path)))
    for name in ASSETS:
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(Path(__file__).with_name(name))))
    return files


def _found(patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        yield from sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern) if path.is_file())


def destination(path: str) -> str:
    """Return where a file of the repository is in the site: docs/a.md is a.html, README.md is project/index.html."""
    inside = path.removeprefix("docs/") if path.startswith("docs/") else path
    inside = inside if "/" in path else f"{_PROJECT}/{path}"
    folder, name = posixpath.split(inside)
    if name.endswith(".md"):
        name = "index.html" if name == "README.md" else f"{name.removesuffix('.md')}.html"
    return posixpath.join(folder, name)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remember the page that is rendered next; the first page needs no list of itself beside it."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    _EXTENSION.links.page, _EXTENSION.links.files = page, files
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Give links to what is no page their addresses."""
    return _MARKED.sub(lambda found: f"{_address(unquote(found[2]), page, config)}{found[3] or ''}", html)


def _address(path: str, page: Page, config: MkDocsConfig) -> str:
    """Return the address of a file or folder of the repository, for a link on a page."""
    if config.repo_url:
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{config.repo_url.rstrip('/')}/{kind}/{config.extra['branch']}/{quote(path)}"
    assert page.file.abs_dest_path is not None
    return quote(Path(os.path.relpath(ROOT / path, Path(page.file.abs_dest_path).parent)).as_posix())


class _Links(Treeprocessor):
    """Marks links to what is no page, resolves those of HTML tags, and mends code with bars in tables.

    Attributes:
        page: the page that is rendered.
        files: all files of the site.
    """

    page: Page
    files: Files

    def run(self, root: Element) -> None:
        """Go through the tree of a page, after inline elements and before MkDocs resolves links."""
        for element in root.iter():
            if element.tag in ("td", "th"):
                for code in element.iter("code"):
                    code.text = (code.text or "").replace("\\|", "|")
            name = {"a": "href", "img": "src"}.get(element.tag)
            if name and (path := self._elsewhere(element.get(name, ""))):
                element.set(name, path)
        assert self.md is not None
        blocks = self.md.htmlStash.rawHtmlBlocks
        blocks[:] = [_TAG.sub(self._tag, one) if isinstance(one, str) else one for one in blocks]

    def _tag(self, tag: re.Match[str]) -> str:
        return _TARGET.sub(lambda found: f'{found[1]}="{self._resolved(found[2])}"', tag[0])

    def _path(self, link: str) -> str | None:
        """Return the path in the repository that a relative link leads to."""
        parts = urlsplit(link)
        if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
            return None
        return posixpath.normpath(posixpath.join(posixpath.dirname(self.page.file.src_uri), unquote(parts.path)))

    def _elsewhere(self, link: str) -> str | None:
        """Return a marked link, if it leads to a file or folder of the repository that is no page."""
        path = self._path(link)
        if path is None or self.files.get_file_from_path(path) or not (ROOT / path).exists():
            return None
        fragment = urlsplit(link).fragment
        return f"{_CLONE}{quote(path)}{'#' if fragment else ''}{fragment}"

    def _resolved(self, link: str) -> str:
        """Return the address of a link in an HTML tag, which MkDocs leaves as it is."""
        path = self._path(link)
        file = path and self.files.get_file_from_path(path)
        if not file:
            return self._elsewhere(link) or link
        fragment = urlsplit(link).fragment
        return get_relative_url(file.url, self.page.file.url) + (f"#{fragment}" if fragment else "")


class _LinkExtension(Extension):
    """Adds `_Links` to Python-Markdown."""

    def __init__(self) -> None:
        super().__init__()
        self.links = _Links()

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register it between inline elements (20) and MkDocs's links (0)."""
        self.links.md = md
        md.treeprocessors.register(self.links, "whiten-links", 5)


_EXTENSION = _LinkExtension()
