"""Test that names from files of others reach the terminal escaped."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from support.bundles import copy_bundle, edit_manifest
from whiten_runtime.commands.console import ConsoleReporter, say, shown, shown_json, warn, whiten

NASTY = "\x1b[2J\x1b]0;title\x07 \u202etxt.exe\u2066 \x9b31m \x7f \u2028 \ud800 \U000e0041"
ESCAPED = r"\x1b[2J\x1b]0;title\x07 \u202etxt.exe\u2066 \x9b31m \x7f \u2028 \ud800 \U000e0041"


def quiet(text: str) -> bool:
    """Return whether a terminal shows a text as it is, apart from lines."""
    return text.replace("\n", "").isprintable()


def test_what_a_terminal_does_not_show_is_escaped() -> None:
    assert shown(NASTY) == ESCAPED
    assert shown("a\nb\tc\r") == r"a\nb\tc\r"
    assert shown("größer, 漢字, עברית, हिन्दी, 🙂") == "größer, 漢字, עברית, हिन्दी, 🙂"


def test_json_means_the_same_with_escapes() -> None:
    value = {"a\u202e": ["\x7f\x9b\u2028", "🙂 größer \U000e0041"], "b": "line\nline"}
    document = json.dumps(value, ensure_ascii=False, indent=2)
    escaped = shown_json(document)
    assert json.loads(escaped) == value
    assert quiet(escaped)
    assert "🙂 größer" in escaped
    assert shown_json('{"a": 1}') == '{"a": 1}'


def test_messages_keep_their_lines_and_their_own_colours(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"first {NASTY}\nsecond", "· ")
    warn(f"of {NASTY}\nx")
    reporter = ConsoleReporter()
    reporter.stage(NASTY)
    reporter.warn(NASTY)
    found = click.unstyle(capsys.readouterr().err)
    assert quiet(found)
    assert found.startswith(f"· first {ESCAPED}\nsecond\nwarning: of ")
    assert reporter.warnings == [NASTY]


@pytest.mark.parametrize("arguments", [("info",), ("info", "--json"), ("verify",), ("verify", "--json")])
def test_a_bundle_cannot_write_to_the_terminal(tiny_bundle: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    bundle, nasty = copy_bundle(tiny_bundle, tmp_path), NASTY.replace("\ud800", "")

    def change(manifest: dict[str, object]) -> None:
        source, parity, whitening = manifest["source"], manifest["parity"], manifest["whitening"]
        assert isinstance(source, dict)
        assert isinstance(parity, dict)
        assert isinstance(whitening, dict)
        source.update(model=nasty, checkpoint=nasty, revision=nasty, model_type=nasty, merged_into=nasty)
        parity.update(reference=nasty)
        whitening["corpus"][0].update(name=nasty)
        manifest.update(name=nasty, route=nasty, versions={nasty: nasty})
        if arguments[0] == "info":
            manifest.update(modules=[nasty], prompts={nasty: nasty}, space=None)
            (bundle / "config_sentence_transformers.json").write_text("{}")  # written anew by another program

    edit_manifest(bundle, change)
    result = CliRunner().invoke(whiten, [arguments[0], str(bundle), *arguments[1:]], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert quiet(result.output)
    assert "u202etxt" in result.output


def test_texts_are_printed_escaped(tiny_bundle: Path) -> None:
    result = CliRunner().invoke(whiten, ["embed", str(tiny_bundle), "\u202eabc\x9b31m"], catch_exceptions=False)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["text"] == "\u202eabc\x9b31m"
    assert quiet(result.stdout)
