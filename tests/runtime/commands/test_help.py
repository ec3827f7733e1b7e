"""Test the help of every command and the completion of shells."""

import os
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from support.cli import python
from whiten_export.commands.export import export
from whiten_runtime.commands.console import Command, whiten


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


@EACH
def test_every_option_is_in_the_help(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(whiten, [*path, "--help"], catch_exceptions=False)
    assert result.exit_code == 0
    assert all(option.opts[0] in result.output for option in options(path) if not option.hidden)


@EACH
@pytest.mark.parametrize("text", ["1_0", "４", "٣", " 3", "3\n", "+3", "3.0", "0x3", "", "3" * 5000])
def test_whole_numbers_are_ascii_digits(path: tuple[str, ...], text: str) -> None:
    for option in options(path):
        if isinstance(option.type, click.types.IntParamType):
            assert option.type_cast_value(click.Context(COMMANDS[path]), ["3"] if option.multiple else "3")
            with pytest.raises(click.BadParameter):
                option.type_cast_value(click.Context(COMMANDS[path]), [text] if option.multiple else text)


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


@pytest.mark.parametrize(
    ("name", "said"),
    [("embd", "'embd'; did you mean embed?"), ("\x1b[31mxyz", "'\\x1b[31mxyz'; see whiten --help")],
)
def test_an_unknown_command_is_printed_without_control_characters(name: str, said: str) -> None:
    result = CliRunner().invoke(whiten, [name])
    assert result.exit_code == 2
    assert f"there is no command {said}" in result.stderr


CODE = """
import atexit, sys
heavy = ("numpy", "onnxruntime", "onnx", "torch", "transformers", "tokenizers", "pyarrow", "matplotlib", "uvicorn")
atexit.register(lambda: print("imported", *(name for name in heavy if name in sys.modules), file=sys.stderr))
sys.argv[0] = sys.argv[1]
if sys.argv[0] == "whiten":
    from whiten_runtime.commands.console import main
else:
    from whiten_export.commands.export import main
main()
"""


def complete(line: str, shell: str = "bash") -> tuple[list[str], str]:
    """Return what a shell gets for a command line, whose last word is not finished, and what was imported for it."""
    words = line.split(" ")
    variable = f"_{words[0].upper().replace('-', '_')}_COMPLETE"
    known = {"COMP_WORDS": line, "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1)}
    done = python(CODE, words[0], env=os.environ | known | {variable: f"{shell}_complete"})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_commands_are_completed() -> None:
    found, imported = complete("whiten ")
    assert {"plain,embed", "plain,export", "plain,serve", "plain,eval"} <= set(found)
    assert imported == "imported\n"
    assert complete("whiten em")[0] == ["plain,embed", "plain,embed-many"]


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("whiten eval ret", ["plain,retrieval"]),
        ("whiten embed bundle --pr", ["plain,--prompt-name", "plain,--prompt"]),
        ("whiten-export minilm --max-", ["plain,--max-length", "plain,--max-sentences"]),
        ("whiten info bundle --help", ["plain,--help"]),
        ("whiten embed bundle --vector-type u", ["plain,uint8", "plain,ubinary"]),
        ("whiten export minilm --whitening a", ["plain,auto"]),
        ("whiten transform bundle --input x", ["file,x"]),
        ("whiten refit bundle --corpus tod", ["file,tod"]),
        ("whiten embed-many bundle --out vec", ["dir,vec"]),
        ("whiten serve bundle --api-key-file k", ["file,k"]),
    ],
)
def test_options_and_values_are_completed(line: str, want: list[str]) -> None:
    assert complete(line)[0] == want


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("whiten ", set()),
        ("whiten em", set()),
        ("whiten embed --", set()),
        ("whiten info bundle --", {"numpy"}),
        ("whiten export --", {"numpy"}),
        ("whiten serve --", {"numpy", "tokenizers"}),
    ],
)
def test_nothing_that_computes_is_imported(line: str, allowed: set[str]) -> None:
    found, imported = complete(line)
    assert found
    assert set(imported.split()[1:]) <= allowed
