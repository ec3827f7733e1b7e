"""Test what becomes of arguments and results where the system makes it hard: locales, closed and full outputs."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from support.cli import MAIN
from whiten import Encoder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs descriptors and locales of POSIX")

TEXT = "héllo 天気"
LOCALES: list[dict[str, str]] = [
    {},
    {"LC_ALL": "C", "PYTHONUTF8": "0"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "C", "PYTHONUTF8": "1"},
    {"LC_ALL": "POSIX", "PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0"},
]


def whiten(
    *arguments: str | bytes | Path, redirect: str = "", locale: Mapping[str, str] = {}, stdin: bytes = b""
) -> "subprocess.CompletedProcess[bytes]":
    """Run `whiten` in a shell that redirects its streams."""
    command = [
        sys.executable,
        "-c",
        "from whiten_runtime.commands.console import main; main()",
        *map(os.fsencode, arguments),
    ]
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirect}', "bash", *command],
        input=stdin,
        capture_output=True,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("LC_")} | dict(locale),
    )


@pytest.mark.parametrize(
    "locale", [*LOCALES[::2], *(pytest.param(locale, marks=pytest.mark.slow) for locale in LOCALES[1::2])], ids=str
)
def test_vector_is_the_same_under_every_locale(tiny_bundle: Path, tiny: Encoder, locale: dict[str, str]) -> None:
    want = tiny.encode(TEXT, prompt="é: ")
    line = f"{TEXT}\n".encode()
    for done in (
        whiten("embed", tiny_bundle, TEXT.encode(), "--prompt", "é: ".encode(), locale=locale),
        whiten("embed", tiny_bundle, "-", "--prompt", "é: ".encode(), locale=locale, stdin=line),
    ):
        assert done.returncode == 0, done.stderr
        row = json.loads(done.stdout)
        assert row["text"] == TEXT
        np.testing.assert_allclose(row["embedding"], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("command", [("info",), ("embed",), ("export",)])
def test_a_path_that_libraries_cannot_open_is_refused(command: tuple[str, ...]) -> None:
    """The libraries that read models take text: Python gives the bytes of a name in another encoding as no text."""
    done = whiten(*command, b"mod\xe8le", *(["a text"] if command == ("embed",) else []), locale={"LC_ALL": "C.UTF-8"})
    assert (done.returncode, done.stdout) == (2, b"")
    assert rb"mod\udce8le" in done.stderr
    assert b"UTF-8" in done.stderr


@pytest.mark.parametrize("locale", [LOCALES[0], LOCALES[2], pytest.param(LOCALES[1], marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ((b"fine", b"h\xe9llo"), 2, rb"'h\udce9llo'"),
        (("fine", "--prompt", b"\xe9"), 2, b"'--prompt'"),
        (("-",), 1, b"line 2"),
    ],
)
def test_bytes_that_are_not_utf8_are_refused(
    tiny_bundle: Path, arguments: tuple[str | bytes, ...], code: int, named: bytes, locale: dict[str, str]
) -> None:
    done = whiten("embed", tiny_bundle, *arguments, locale=locale, stdin=b"fine\nh\xe9llo\n")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (code, b"", 1)
    assert named in done.stderr


@pytest.mark.parametrize(
    ("redirect", "words"), [(">&-", b"stdout is closed"), ("> /dev/full", b"stdout cannot be written (No space left")]
)
@pytest.mark.parametrize("arguments", [("embed", "BUNDLE", "a text"), ("info", "BUNDLE", "--json"), ("--version",)])
def test_output_that_cannot_be_written_is_an_error(
    tiny_bundle: Path, arguments: tuple[str, ...], redirect: str, words: bytes
) -> None:
    done = whiten(*(tiny_bundle if word == "BUNDLE" else word for word in arguments), redirect=redirect)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: " + words)
    assert done.stderr.count(b"\n") == 1


def test_reader_that_closes_the_output_ends_the_command_quietly(tiny_bundle: Path) -> None:
    lines = b"a text\n" * 5000
    done = whiten("embed", tiny_bundle, "-", redirect="| head -1; echo ${PIPESTATUS[0]}", stdin=lines)
    *_, code = done.stdout.split()
    assert (code, done.stderr) == (b"141", b"")


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz"])
def test_standard_input_of_a_kind_has_columns(tiny_bundle: Path, kind: str) -> None:
    lines = b'{"text": "a cat", "body": "the dog"}\n{"body": 5}\n'
    stdin = gzip.compress(lines) if kind.endswith("gz") else lines
    done = whiten("embed", tiny_bundle, "--input", "-", "--kind", kind, "--column", "text", stdin=stdin)
    assert b"line 2" in done.stderr
    for options in (("--input", "-", "--column", "text"), ("a text", "--kind", "jsonl")):
        done = whiten("embed", tiny_bundle, *options, stdin=lines)
        assert (done.returncode, done.stdout) == (2, b"")


def test_lines_of_a_pipe_are_answered_as_they_come(tiny_bundle: Path) -> None:
    """As for a co-process, which waits for each answer."""
    command = [sys.executable, "-c", MAIN, "embed", str(tiny_bundle), "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        for lines in (b"first\n", b"second\nthird\n", b"\n", b"caf\xc3\xa9\n"):
            running.stdin.write(lines)
            running.stdin.flush()
            for line in lines.decode().splitlines():
                assert json.loads(running.stdout.readline())["text"] == line
        running.stdin.write(b"no end of line")
        running.stdin.close()
        assert json.loads(running.stdout.readline())["text"] == "no end of line"
        assert running.wait(60) == 0
