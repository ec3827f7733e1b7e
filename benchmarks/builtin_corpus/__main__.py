"""Make the file of the built-in corpus.

Run as `python -m benchmarks.builtin_corpus --wordnet /usr/share/wordnet`; Debian's package wordnet-base has these
files. The docstrings are taken from the corpus that is there, so that they stay those of the Python that was first
used; `--stdlib FOLDER` takes new ones.
"""

import argparse
import hashlib
from pathlib import Path

from benchmarks.builtin_corpus.make import DOCSTRINGS, compress, corpus_lines
from benchmarks.builtin_corpus.sources import docstring_sentences, wordnet_examples
from whiten_runtime.files import corpus as builtin
from whiten_runtime.files.corpus import BUILTIN_FILE, builtin_sentences


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.builtin_corpus", description=__doc__)
    parser.add_argument("--wordnet", type=Path, required=True, help="folder with data.noun and the like of WordNet 3.0")
    parser.add_argument("--stdlib", type=Path, help="standard library to take docstrings from, instead of the snapshot")
    parser.add_argument("--out", type=Path, default=Path(builtin.__file__).with_name(BUILTIN_FILE))
    arguments = parser.parse_args()
    if arguments.stdlib is not None:
        docstrings = list(docstring_sentences(arguments.stdlib))
    else:
        docstrings = [sentence for kind, sentence in builtin_sentences() if kind == DOCSTRINGS]
    lines = corpus_lines(docstrings, wordnet_examples(arguments.wordnet))
    content = compress(lines)
    arguments.out.write_bytes(content)
    digest = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    print(f"{arguments.out}: {len(lines):,} sentences, {len(content):,} bytes, sentences' SHA-256 {digest}")


if __name__ == "__main__":
    main()
