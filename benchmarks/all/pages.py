"""Put figures into pages: tables between comments, and numbers in sentences.

A table stands between `<!-- figures: NAME -->` and `<!-- end -->`. A sentence is known by its words: the numbers in it
are the figures that its template names. Both are written anew from the figures, and a test compares the pages with
what would be written, so a number that is edited by hand is found.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.all.statements import SENTENCES
from benchmarks.all.tables import blocks
from benchmarks.all.values import values
from benchmarks.peers.report import report

BLOCK = re.compile(r"(?P<begin><!-- figures: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(?P<end>^<!-- end -->)", re.M | re.S)

_PLACE = re.compile(r"(\{\w+\})")
_NUMBER = r"([\d.,]*\d)"


def rewritten(root: Path, figures: Mapping[str, Any]) -> dict[Path, str]:
    """Return the text of every page that states figures, with these figures, and of the files of `benchmarks.peers`.

    Args:
        root: folder of the README.
        figures: content of readme.json.

    Raises:
        ValueError: the figures are not those of a whole run, a sentence is not on its page exactly once, or a page has
            a table that is not known.
    """
    if figures.get("quick", True):
        raise ValueError("these figures are of a dry run (--quick); measure without it")
    known, tables = values(figures), blocks(figures)
    pages = {root / page: (root / page).read_text("utf-8") for page in sorted({*SENTENCES, *TABLES})}
    for path, text in pages.items():
        page = path.relative_to(root).as_posix()
        for template in SENTENCES.get(page, ()):
            text = fill_sentence(text, template, known, page)
        pages[path] = fill_blocks(text, tables, TABLES.get(page, ()), page)
    peers = root / "benchmarks" / "peers"
    results = json.loads((peers / "figures.json").read_text("utf-8"))
    results[figures["processor"]["place"]] = figures["speed"]
    return pages | {
        peers / "figures.json": json.dumps(results, indent=1) + "\n",
        peers / "table.md": report(results),
    }


TABLES = {"README.md": ("speed",), "docs/guides/embedding.md": ("speed-and-peak",)}
"""Names of the tables of each page."""


def fill_blocks(text: str, tables: Mapping[str, str], names: tuple[str, ...], page: str) -> str:
    """Replace what stands between the comments.

    Raises:
        ValueError: the page has other tables than those of these names.
    """
    found = tuple(match["name"] for match in BLOCK.finditer(text))
    if found != names:
        raise ValueError(f"{page} has the tables {', '.join(found) or 'none'}; wanted {', '.join(names) or 'none'}")
    return BLOCK.sub(lambda match: f"{match['begin']}\n{tables[match['name']]}\n\n{match['end']}", text)


def pattern(template: str) -> re.Pattern[str]:
    """Return an expression that finds a sentence with any numbers, however its lines are broken."""
    return re.compile(
        "".join(
            _NUMBER if _PLACE.fullmatch(part) else r"\s+".join(map(re.escape, re.split(r"\s+", part)))
            for part in _PLACE.split(template)
        )
    )


def fill_sentence(text: str, template: str, known: Mapping[str, str], page: str) -> str:
    """Replace the numbers of a sentence.

    Args:
        text: the page.
        template: the sentence with `{name}` in place of numbers.
        known: figures as they are to be printed, by name.
        page: what to call the page in errors.

    Raises:
        ValueError: the sentence is not there exactly once.
    """
    found = list(pattern(template).finditer(text))
    if len(found) != 1:
        raise ValueError(f"{page} has {len(found)} times, wanted once: {template}")
    for number, name in reversed([*enumerate(re.findall(r"\{(\w+)\}", template), 1)]):
        start, end = found[0].span(number)
        text = text[:start] + known[name] + text[end:]
    return text
