"""Embed one process's share of the texts, when the parent says so, and print the seconds.

Run by `benchmarks.budgets`: `python -m benchmarks.budgets.process BUNDLE FILE NUMBER COUNT THREADS`.
"""

import sys
from pathlib import Path

from benchmarks.timing import seconds
from whiten_runtime import Encoder


def main() -> None:
    """Load the bundle, print an empty line, wait for a line, then embed and print."""
    bundle, file, number, count, threads = sys.argv[1:]
    texts = Path(file).read_text(encoding="utf-8").splitlines()[int(number) :: int(count)]
    encoder = Encoder(bundle, threads=int(threads))
    encoder.encode(texts[:64])
    print(flush=True)
    sys.stdin.readline()
    print(seconds(lambda: encoder.encode(texts)))


if __name__ == "__main__":
    main()
