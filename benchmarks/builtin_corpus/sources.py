"""Read the text that the built-in corpus takes from elsewhere: Python's docstrings and WordNet's examples."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_SKIPPED_FOLDERS = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip")
)
_MARKUP = (">>>", "...", ":", "+", "-", "*", "|", "=")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
_QUOTED = re.compile(r'"([^"]+)"')
_PARTS_OF_SPEECH = ("adj", "adv", "noun", "verb")


def docstring_sentences(stdlib: Path) -> Iterator[str]:
    """Yield distinct sentences from the docstrings of a Python standard library, in the order of its files."""
    seen: set[str] = set()
    for path in sorted(stdlib.rglob("*.py"), key=lambda path: path.relative_to(stdlib).as_posix()):
        if _SKIPPED_FOLDERS & set(path.relative_to(stdlib).parts[:-1]):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for sentence in _prose(ast.get_docstring(node) or ""):
                    if sentence not in seen:
                        seen.add(sentence)
                        yield sentence


def wordnet_examples(folder: Path) -> Iterator[str]:
    """Yield distinct example sentences of at least four words from WordNet's files data.adj and so on."""
    seen: set[str] = set()
    for part in _PARTS_OF_SPEECH:
        for line in (folder / f"data.{part}").read_text("latin-1").splitlines():
            if line.startswith("  "):  # the licence, at the head of each file
                continue
            for example in _QUOTED.findall(line.partition("|")[2]):
                sentence = " ".join(example.split())
                if len(sentence.split()) >= 4 and sentence not in seen:
                    seen.add(sentence)
                    yield sentence


def _prose(docstring: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", docstring):
        lines = (line for line in paragraph.splitlines() if not line.lstrip().startswith(_MARKUP))
        for sentence in _SENTENCE_END.split(" ".join(" ".join(lines).split())):
            letters = sum(character.isalpha() for character in sentence)
            if 4 <= len(sentence.split()) <= 60 and letters >= 0.6 * len(sentence):
                yield sentence
