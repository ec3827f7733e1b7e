"""Test that the help of every command fits two screens, has headings, and ends with two examples that work."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from whiten_export.commands.export import export
from whiten_runtime.commands.help import OTHER, Command
from whiten_runtime.commands.main import whiten

LINES = {"whiten export": 110, "whiten serve": 104, "whiten": 44}
"""Lines of the longest pages, whose options are the most; every other has 66 at most."""

HEADINGS = {
    *("Model", "Corpus", "Whitening", "Graph", "Input", "Data", "Vectors", "Codes", "Intervals", "Output", "Execution"),
    *("Author", "Signature", "Repository", "Check", "Measurement", "Settings", "Address", "Models and queue", "Limits"),
    *("Texts and vectors", "Access", "Starting and stopping", "Logs"),
}
VERBS = {
    *("Classify", "Compare", "Compute", "Correlate", "Decide", "Embed", "Export", "Fit", "List", "Measure", "Merge"),
    *("Prove", "Score", "Serve", "Show", "Sign", "Tell", "Upload", "Whiten", "Write"),
}


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


def page(path: tuple[str, ...]) -> list[str]:
    result = CliRunner().invoke(whiten, [*path, "--help"], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output.splitlines()


def options(path: tuple[str, ...]) -> dict[str, list[click.Option]]:
    """Return the options of a command by their headings, in order."""
    command = COMMANDS[path]
    found: dict[str, list[click.Option]] = {}
    for one in command.get_params(click.Context(command, help_option_names=["-h", "--help"])):
        if isinstance(one, click.Option):
            found.setdefault(getattr(one, "heading", None) or OTHER, []).append(one)
    return found


def first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def test_there_are_all_commands() -> None:
    assert {path[0] for path in COMMANDS if path} >= {"embed", "export", "serve", "embed-many", "eval", "doctor"}
    assert len(COMMANDS) > 25


@EACH
def test_help_fits_two_screens(path: tuple[str, ...]) -> None:
    lines = page(path)
    assert len(lines) <= LINES.get(" ".join(("whiten", *path)), 66)
    assert max(map(len, lines)) <= 80


@EACH
def test_every_option_is_under_one_heading(path: tuple[str, ...]) -> None:
    found = options(path)
    assert found.keys() - {OTHER} <= HEADINGS
    names = [option.name for group in found.values() for option in group]
    assert len(names) == len(set(names))
    others = {option.name for option in found[OTHER]}
    assert others <= {"debug", "version", "help", "_click_default_help"}
    everything = page(path)
    for heading, group in found.items():
        begin = everything.index(f"{heading}:")
        end = next(place for place in range(begin, len(everything)) if not everything[place])
        rows = [re.split(r"  +", line.strip())[0] for line in everything[begin + 1 : end] if re.match(r"  \S", line)]
        assert len(rows) == len(group)
        for row, option in zip(rows, group, strict=True):
            assert all(name in re.split(r"[, ]+", row) for name in option.opts)


@EACH
def test_it_begins_with_what_the_command_does(path: tuple[str, ...]) -> None:
    help_text = COMMANDS[path].help
    assert help_text is not None
    sentence = first_sentence(" ".join(help_text.split("\n\n")[0].split()))
    assert sentence.split()[0] in VERBS
    assert sentence.endswith(".")
    assert len(sentence) <= 76
    assert " ".join(page(path)[2].split()) == sentence


@EACH
def test_it_ends_with_two_examples_that_can_be_used(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert isinstance(command, Command)
    assert len(set(command.examples)) == 2
    assert page(path)[-3:] == ["Examples:", *(f"  {example}" for example in command.examples)]
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
        for group in options(path).values()
        for option in group
        if name in option.opts
    }
    assert len(said) == 1


@pytest.mark.parametrize("path", [path for path in COMMANDS if path and not isinstance(COMMANDS[path], click.Group)])
def test_results_go_to_out_by_either_spelling(path: tuple[str, ...]) -> None:
    found = [option for group in options(path).values() for option in group if "--out" in option.opts]
    assert all("-o" in option.opts for option in found)


def test_an_unknown_command_names_one_that_is_written_alike() -> None:
    result = CliRunner().invoke(whiten, ["embd"])
    assert result.exit_code == 2
    assert "there is no command 'embd'; did you mean embed?" in result.stderr


def test_an_unknown_command_is_printed_without_control_characters() -> None:
    result = CliRunner().invoke(whiten, ["\x1b[31mxyz"])
    assert result.exit_code == 2
    assert "there is no command '\\x1b[31mxyz'; see whiten --help" in result.stderr
