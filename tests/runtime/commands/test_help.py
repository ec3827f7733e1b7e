"""Test that the help of every command has its options, with one meaning a name, and two examples that work."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from whiten_export.commands.export import export
from whiten_runtime.commands.help import Command
from whiten_runtime.commands.main import whiten


def walk(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from walk((*path, name), child)


COMMANDS = dict(walk((), whiten))
EACH = pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(("whiten", *path)))


def options(path: tuple[str, ...]) -> list[click.Option]:
    return [one for one in COMMANDS[path].params if isinstance(one, click.Option)]


def first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def test_there_are_all_commands() -> None:
    assert {path[0] for path in COMMANDS if path} >= {"embed", "export", "serve", "embed-many", "eval", "doctor"}
    assert len(COMMANDS) > 25


@EACH
def test_every_option_and_what_the_command_does_are_in_its_help(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(whiten, [*path, "--help"], catch_exceptions=False).output
    assert all(option.opts[0] in shown for option in options(path) if not option.hidden)
    assert first_sentence(COMMANDS[path].help or "").split()[0] in shown
    assert max(map(len, shown.splitlines())) <= 80


@EACH
def test_it_ends_with_two_examples_that_can_be_used(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert isinstance(command, Command)
    assert len(set(command.examples)) == 2
    for example in command.examples:
        words = shlex.split(example)
        if words[0] == "whiten-export":
            assert path == ("export",)
            export.make_context("whiten-export", words[1:])
            continue
        assert words[: len(path) + 1] == ["whiten", *path]
        named = max((known for known in COMMANDS if tuple(words[1 : len(known) + 1]) == known), key=len)
        assert named[: len(path)] == path
        assert not isinstance(COMMANDS[named], click.Group)
        COMMANDS[named].make_context(named[-1], words[len(named) + 1 :])


@pytest.mark.parametrize("name", ["--json", "--csv", "--quiet", "--threads", "--device", "--truncate-dim", "--column"])
def test_an_option_has_the_same_words_everywhere(name: str) -> None:
    """`whiten serve` makes its options from a table with words of its own; columns are of what the input holds."""
    said = {
        first_sentence(option.help or "").split(" of ")[0].rstrip(".")
        for path in COMMANDS
        if path != ("serve",)
        for option in options(path)
        if name in option.opts
    }
    assert len(said) == 1


@EACH
def test_results_go_to_out_by_either_spelling(path: tuple[str, ...]) -> None:
    assert all("-o" in option.opts for option in options(path) if "--out" in option.opts)


@pytest.mark.parametrize(
    ("name", "said"),
    [("embd", "'embd'; did you mean embed?"), ("\x1b[31mxyz", "'\\x1b[31mxyz'; see whiten --help")],
)
def test_an_unknown_command_is_printed_without_control_characters(name: str, said: str) -> None:
    result = CliRunner().invoke(whiten, [name])
    assert result.exit_code == 2
    assert f"there is no command {said}" in result.stderr
