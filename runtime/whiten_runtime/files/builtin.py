"""Read the built-in corpus: English sentences of many kinds, the same on every machine; NOTICE names their sources."""

import gzip
from functools import cache
from importlib.resources import files

from whiten_runtime.errors import UsageError

BUILTIN_CORPUS = "builtin:english-1"
"""Name of the built-in corpus. Its sentences never change: a better one gets a new name."""

BUILTIN_FILE = "english-1.txt.gz"
"""File of the built-in corpus in this package: a kind of text, a tab and a sentence in each line, kinds mixed."""

_PREFIX = "builtin:"


def is_builtin(source: str) -> bool:
    """Return whether a source of sentences names the built-in corpus."""
    if source.startswith(_PREFIX) and source != BUILTIN_CORPUS:
        raise UsageError(f"there is no corpus '{source}'; the built-in one is {BUILTIN_CORPUS}, others are files")
    return source == BUILTIN_CORPUS


@cache
def builtin_sentences() -> tuple[tuple[str, str], ...]:
    """Return kind and sentence of the whole built-in corpus, in the order of its file."""
    content = gzip.decompress((files(__package__) / BUILTIN_FILE).read_bytes()).decode("utf-8")
    found = []
    for line in content.splitlines():
        kind, _, sentence = line.partition("\t")
        found.append((kind, sentence))
    return tuple(found)
