"""Read HTML pages: the links, anchors and elements of each, and what of the links leads nowhere."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
LOADED = {"link", "script", "img", "source", "iframe", "video", "audio", "object"}
"""Elements whose target is loaded with the page."""

_URL = re.compile(r"url\(['\"]?([^'\")]+)|@import ['\"]([^'\"]+)")


@dataclass
class HtmlPage:
    """Holds what was found on a page.

    Attributes:
        anchors: ids and names of elements.
        links: element and target of each link.
        elements: number of elements inside <article>, by their names.
        cells: text of code inside the cells of tables.
    """

    anchors: set[str] = field(default_factory=set)
    links: list[tuple[str, str]] = field(default_factory=list)
    elements: Counter[str] = field(default_factory=Counter)
    cells: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = HtmlPage()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.page.anchors.update(values[name] for name in ("id", "name") if values.get(name))
        self.page.links += [(tag, values[name]) for name in ("href", "src", "data") if name in values]
        candidates = (one.split()[0] for one in values.get("srcset", "").split(",") if one.strip())
        self.page.links += [(tag, target) for target in candidates]
        if "article" in self.open:
            self.page.elements[tag] += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["code"] and "td" in self.open:
            self.page.cells.append(data)


def read_page(text: str) -> HtmlPage:
    """Return what is on a page."""
    reader = _Reader()
    reader.feed(text)
    return reader.page


def read_site(site: Path) -> dict[Path, HtmlPage]:
    """Return all pages of a site by their files."""
    return {file: read_page(file.read_text("utf-8")) for file in sorted(site.rglob("*.html"))}


def is_external(target: str) -> bool:
    """Return whether a target is on another host."""
    parts = urlsplit(target)
    return bool(parts.netloc) or parts.scheme in ("http", "https", "ftp")


def loaded_from_elsewhere(site: Path, pages: dict[Path, HtmlPage]) -> Iterator[str]:
    """Yield what pages and style sheets load from other hosts."""
    for file, page in pages.items():
        yield from (f"{file}: {target}" for tag, target in page.links if tag in LOADED and is_external(target))
    for sheet in site.rglob("*.css"):
        targets = (found[1] or found[2] for found in _URL.finditer(sheet.read_text("utf-8")))
        yield from (f"{sheet}: {target}" for target in targets if is_external(target))


def broken_links(pages: dict[Path, HtmlPage]) -> Iterator[str]:
    """Yield links to files that are not there, to folders without a page, and to anchors that are not on their page."""
    for file, page in pages.items():
        for tag, target in page.links:
            parts = urlsplit(target)
            if is_external(target) or parts.scheme in ("mailto", "data", "javascript"):
                continue
            path = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if parts.path.startswith("/") or parts.scheme or not path.exists():
                yield f"{file}: <{tag}> {target}"
            elif parts.fragment and path in pages and unquote(parts.fragment) not in pages[path].anchors:
                yield f"{file}: <{tag}> {target}, which has no such anchor"
