"""What the code warns of as deprecated stands in the table of docs/stability.md, with dates that keep the promise."""

import ast
import datetime
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("evaluation", "export", "models", "runtime", "scale", "serving", "whitening")
CATEGORIES = {"DeprecationWarning", "FutureWarning", "PendingDeprecationWarning"}
ROW = re.compile(
    r"^\| `(?P<what>[^`]+)`[^|]*\|[^|]+\| (?P<since>[\d.]+) \| (?P<on>[\d-]+) "
    r"\| (?P<gone>[\d.]+) \| (?P<day>[\d-]+) \|$"
)


def warnings_in(source: str) -> Iterator[str]:
    """Yield the constant text of every warning of deprecation in a module; of click's options, the name."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        words = {name for part in [*node.args, *node.keywords] for name in _names(part)}
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        deprecated = any(item.arg == "deprecated" and not _is(item.value, False) for item in node.keywords)
        if (words & CATEGORIES and name not in ("isinstance", "issubclass", "simplefilter", "filterwarnings")) or (
            name == "deprecated" or deprecated
        ):
            yield " ".join(
                part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )


def _names(node: ast.AST) -> Iterator[str]:
    value = node.value if isinstance(node, ast.keyword) else node
    if isinstance(value, ast.Name):
        yield value.id
    if isinstance(value, ast.Attribute):
        yield value.attr


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def rows(text: str) -> list[re.Match[str]]:
    """Return the rows of the table; one that is not understood is an error."""
    section = text[text.index("## Deprecated today") :]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert lines
    if [line.replace(" ", "") for line in lines] == ["|nothing||||||"]:
        return []
    found = [ROW.match(line) for line in lines]
    assert None not in found, lines
    return [match for match in found if match]


def missing(warned: list[str], table: list[re.Match[str]]) -> list[str]:
    """Return the warnings that no row is about, and the rows that nothing warns of."""
    whats = [row["what"] for row in table]
    return [text for text in warned if not any(what in text for what in whats)] + [
        what for what in whats if not any(what in text for text in warned)
    ]


def broken(row: re.Match[str]) -> bool:
    """Return whether a row promises less than two minor versions and six months."""
    major, minor = map(int, row["since"].split(".")[:2])
    last = [*map(int, row["gone"].split("."))]
    days = datetime.date.fromisoformat(row["day"]) - datetime.date.fromisoformat(row["on"])
    return last[:2] < [major, minor + 2] or days < datetime.timedelta(days=181)


def warned() -> list[str]:
    sources = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    assert len(sources) > 200
    return [text for path in sources for text in warnings_in(path.read_text("utf-8"))]


def page() -> str:
    return (ROOT / "docs" / "stability.md").read_text("utf-8")


def test_the_table_has_what_the_code_warns_of() -> None:
    assert missing(warned(), rows(page())) == []


def test_the_table_keeps_the_promise() -> None:
    assert [row["what"] for row in rows(page()) if broken(row)] == []


def test_the_changelog_names_what_is_deprecated() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert [row["what"] for row in rows(page()) if f"`{row['what']}`" not in text] == []


@pytest.mark.parametrize(
    "code",
    [
        "warnings.warn('`old` goes; use new', DeprecationWarning, stacklevel=2)",
        "warn('`old` goes', category=FutureWarning)",
        "@warnings.deprecated('`old` goes')\ndef old(): ...",
        "click.option('--old', deprecated=True)",
        "click.option('--old', deprecated='use --new')",
    ],
)
def test_every_way_to_warn_is_seen(code: str) -> None:
    (text,) = warnings_in(code)
    assert "old" in text
    head = "## Deprecated today\n| what |\n|---|\n"
    good = rows(head + "| `old` | new | 0.2 | 2026-11-23 | 0.4 | 2027-05-23 |")
    assert missing([text], good) == []
    assert missing([text], []) == [text]
    assert missing([], good) == ["old"]
    assert not broken(good[0])


@pytest.mark.parametrize("code", ["issubclass(a, FutureWarning)", "click.option('--x', deprecated=False)", "warn('x')"])
def test_what_warns_of_nothing_is_not_seen(code: str) -> None:
    assert list(warnings_in(code)) == []


@pytest.mark.parametrize("end", ["0.3 | 2027-05-23", "0.4 | 2027-03-01"])
def test_a_row_that_goes_too_soon_is_found(end: str) -> None:
    (row,) = rows(f"## Deprecated today\n| what |\n|---|\n| `old` | new | 0.2 | 2026-11-23 | {end} |")
    assert broken(row)
