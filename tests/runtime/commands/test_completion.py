"""Test the completion of shells: what they get, and that it comes without imports of what computes."""

import os

import pytest

from support.cli import python

CODE = """
import atexit, sys
heavy = ("numpy", "onnxruntime", "onnx", "torch", "transformers", "tokenizers", "pyarrow", "matplotlib", "uvicorn")
atexit.register(lambda: print("imported", *(name for name in heavy if name in sys.modules), file=sys.stderr))
sys.argv[0] = sys.argv[1]
if sys.argv[0] == "whiten":
    from whiten_runtime.commands.main import main
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
        ("whiten eval co", ["plain,codes", "plain,compare"]),
        ("whiten embed bundle --pr", ["plain,--prompt-name", "plain,--prompt"]),
        ("whiten-export minilm --max-", ["plain,--max-length", "plain,--max-words", "plain,--max-sentences"]),
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
