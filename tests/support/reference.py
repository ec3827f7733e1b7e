"""Write the pages of the reference from docstrings and the help of commands: `python tests/support/reference.py`."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

import whiten as public
from whiten_runtime.commands.console import whiten
from whiten_serving.commands.serve import serve
from whiten_serving.settings import SETTINGS

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference"
MARK = "<!-- What follows is written by `python tests/support/reference.py`. -->\n"

_HOMES = ("evaluation", "export", "models", "runtime", "scale", "serving", "whitening")
_CONFIG = {
    "docstring_style": "google",
    "filters": ["!^_"],
    "heading_level": 2,
    "inherited_members": True,
    "members_order": "alphabetical",
    "merge_init_into_class": True,
    "show_bases": False,
    "show_if_no_docstring": False,
    "show_object_full_path": True,
    "show_root_full_path": True,
    "summary": False,
}
_CODE = re.compile(r"<code>(.*?)</code>", re.DOTALL)
_SIGNATURE = re.compile(r"(^#+ `[^`]+`\n\n)```python$", re.MULTILINE)
_LINK = re.compile(r"\[([^\[\]]+)\]\(#[^)]*\)")


def api() -> str:
    """Return the documentation of all public names."""
    from griffe import GriffeLoader, Parser
    from griffe2md import render_object_docs

    places = [ROOT, *(ROOT / home for home in _HOMES)]
    loader = GriffeLoader(search_paths=places, docstring_parser=Parser.google)
    for module in ("whiten_models", "whiten_runtime", "whiten_whitening", "whiten_export", "whiten_serving", "whiten"):
        loader.load(module)
    loader.resolve_aliases(external=True)
    members = loader.modules_collection["whiten"].members
    names = sorted({*public.__all__} - {"__version__"})
    for member in map(members.get, names):
        if member.is_class and "__init__" in member.inherited_members:  # griffe2md shows no inherited signature
            member.final_target.set_member("__init__", member.inherited_members["__init__"].final_target)
    return "\n".join(_plain(render_object_docs(members[name], _CONFIG)) for name in names)  # type: ignore[typeddict-item]


def _plain(text: str) -> str:
    """Return Markdown whose types are code, without links to what no page has."""
    while _LINK.search(text):  # links are inside each other, as of dict[str, Any]
        text = _LINK.sub(r"\1", text)
    text = _SIGNATURE.sub(r"\1```text", text)  # it is no Python that runs
    text = _CODE.sub(r"`\1`", text).replace("`whiten.", "`")
    return "\n".join(line.rstrip() for line in text.split("\n")).strip() + "\n"


def commands() -> str:
    """Return the help of every command, of 100 columns, and the settings of `whiten serve`."""
    return "\n".join([*_command(whiten, ("whiten",)), settings()])


def _command(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    yield f"### {' '.join(path)}\n"
    text = CliRunner(env={"COLUMNS": "100"}).invoke(whiten, [*path[1:], "--help"], prog_name="whiten").output
    yield f"```text\n{text.strip()}\n```\n"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            member = command.get_command(context, name)
            assert member is not None
            yield from _command(member, (*path, name))


def settings() -> str:
    """Return a table of the settings of `whiten serve`, with their names in the file of --config."""
    rows = ["### Settings of whiten serve\n", "| key | default | option | |", "|---|---|---|---|"]
    options = {parameter.name for parameter in serve.params}
    for setting in SETTINGS.values():
        option = f"`--{setting.key}`" if setting.name in options else ""
        rows.append(f"| `{setting.key}` | {setting.shown()} | {option} | {setting.help} |")
    return "\n".join(rows) + "\n"


def page(name: str, content: str) -> str:
    """Return a page with its introduction as it is, and new content behind the mark."""
    introduction, mark, _ = (PAGES / name).read_text("utf-8").partition(MARK)
    assert mark, f"{name} lacks the line {MARK.strip()}"
    return f"{introduction}{MARK}\n{content}"


if __name__ == "__main__":
    for name, content in (("api.md", api()), ("commands.md", commands())):
        (PAGES / name).write_text(page(name, content), "utf-8")
