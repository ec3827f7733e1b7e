"""Check the documentation: links lead somewhere, and snippets can be pasted."""

import ast
import re
import shlex
from pathlib import Path

import click
import pytest

import whiten as whiten_names
from whiten_export.commands.export import export
from whiten_runtime.commands.console import whiten

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md")), *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENDS = ("|", "||", ">", "&&", "&")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def snippets(page: Path, language: str) -> list[str]:
    return [code for kind, code in FENCE.findall(page.read_text("utf-8")) if kind == language]


@pytest.mark.parametrize("package", ["evaluation", "export", "runtime", "scale", "serving", "whitening"])
def test_the_architecture_names_every_module(package: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    part = page.partition(f"\n**whiten_{package}**")[2].partition("\n**whiten_")[0].partition("\n## ")[0]
    files = [path for path in (ROOT / package).rglob("[a-z]*.py") if path.parent.name != "commands"]
    assert {path.stem for path in files} - set(re.findall(r"`(\w+)`", part)) == set()


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    assert re.findall(r"^## `(\w+)`$", page, re.MULTILINE) == sorted({*whiten_names.__all__} - {"__version__"})


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links(page: Path) -> None:
    for link, anchor in LINK.findall(page.read_text("utf-8")):
        if "://" not in link:
            target = page.parent / link if link else page
            assert target.exists(), link
            assert anchor or target.resolve() != page, f"[...]({link}) leads to its own page"
            assert not anchor or anchor in anchors(target), f"{link}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_row_stands_outside_its_table(page: Path) -> None:
    """A table begins with its head, and a line of dashes under it."""
    lines = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL).splitlines()
    triples = zip(["", *lines], lines, [*lines[1:], ""], strict=False)
    heads = [(row, under) for above, row, under in triples if row.startswith("|") and not above.startswith("|")]
    assert [row for row, under in heads if not re.match(r"\|[ |:-]+\|$", under)] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_snippets(page: Path) -> None:
    for code in snippets(page, "python"):
        ast.parse(code)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_shell_snippets(page: Path) -> None:
    for code in snippets(page, "bash"):
        for line in re.sub(r"(\\|&&)\n", " ", code).splitlines():
            check_line(line)


def check_line(line: str) -> None:
    """Parse the part of a shell's line that is a command of ours, as click does."""
    words = shlex.split(line, comments=True)
    for index, word in enumerate(words):
        if word in ("whiten", "whiten-export") and (index == 0 or words[index - 1] in ENDS):
            rest = words[index + 1 :]
            end = next((place for place, other in enumerate(rest) if other in ENDS), len(rest))
            parse(whiten if word == "whiten" else export, word, rest[:end])


def parse(command: click.Command, name: str, arguments: list[str], parent: click.Context | None = None) -> None:
    try:
        if not isinstance(command, click.Group):
            command.make_context(name, arguments, parent)
            return
        context = click.Context(command, parent, name)
        child = command.get_command(context, arguments[0])
        assert child is not None, f"{name} has no command {arguments[0]}"
        parse(child, arguments[0], arguments[1:], context)
    except click.UsageError as error:
        pytest.fail(f"{name} {shlex.join(arguments)}: {error.format_message()}")


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / ".ci").iterdir()))
def test_tests_that_a_script_names_exist(script: str) -> None:
    named = re.findall(r"\btests/[\w/.]+", (ROOT / ".ci" / script).read_text("utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []
