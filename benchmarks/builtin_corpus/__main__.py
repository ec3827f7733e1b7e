"""Make the built-in corpus, or measure what a whitening that is fitted on it gives.

Run as `python -m benchmarks.builtin_corpus make --wordnet /usr/share/wordnet`; Debian's package wordnet-base has these
files. The docstrings are taken from the corpus that is there, so that they stay those of the Python that was first
used; `--stdlib FOLDER` takes new ones. `python -m benchmarks.builtin_corpus measure MODEL --data FOLDER` prints a table
of the similarity tasks by layers and whitening.
"""

import argparse
import hashlib
import sys
from pathlib import Path

from benchmarks.builtin_corpus.make import DOCSTRINGS, compress, corpus_lines
from benchmarks.builtin_corpus.measure import measure
from benchmarks.builtin_corpus.sources import docstring_sentences, wordnet_examples
from whiten_runtime.files import builtin
from whiten_runtime.files.builtin import BUILTIN_FILE, builtin_sentences


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.builtin_corpus", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make", help="write the file of the corpus")
    maker.add_argument("--wordnet", type=Path, required=True, help="folder with data.noun and the like of WordNet 3.0")
    maker.add_argument("--stdlib", type=Path, help="standard library to take docstrings from, instead of the snapshot")
    maker.add_argument("--out", type=Path, default=Path(builtin.__file__).with_name(BUILTIN_FILE))
    meter = commands.add_parser("measure", help="print a table by layers and whitening")
    meter.add_argument("model")
    meter.add_argument("--data", type=Path, required=True, help="folder of the similarity tasks")
    meter.add_argument("--tuned", action="store_true", help="the checkpoint was fine-tuned for sentence similarity")
    arguments = parser.parse_args()
    if arguments.command == "measure":
        sys.stdout.write(measure(arguments.model, arguments.data, arguments.tuned))
        return
    if arguments.stdlib is not None:
        docstrings = list(docstring_sentences(arguments.stdlib))
    else:
        docstrings = [sentence for kind, sentence in builtin_sentences() if kind == DOCSTRINGS]
    lines = corpus_lines(docstrings, wordnet_examples(arguments.wordnet))
    content = compress(lines)
    arguments.out.write_bytes(content)
    digest = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    sys.stdout.write(
        f"{arguments.out}: {len(lines):,} sentences, {len(content):,} bytes, sentences' SHA-256 {digest}\n"
    )


if __name__ == "__main__":
    main()
