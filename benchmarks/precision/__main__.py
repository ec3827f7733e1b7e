"""Compare bundles side by side: texts per second of one call, and the time of one text.

Run as `python -m benchmarks.precision BUNDLE BUNDLE ... --texts FILE`, with nothing else running. One session lives at
a time. Ratios are to the first bundle.
"""

import argparse
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.machine import made_by
from benchmarks.timing import interleaved, ratios, seconds, seconds_each, spread
from whiten_runtime import Encoder
from whiten_runtime.files.texts import read_texts


class Speed(NamedTuple):
    """Hold the figures of one bundle in one round.

    Attributes:
        rate: texts per second of one call.
        single: median seconds of one text at a time.
    """

    rate: float
    single: float


def measure(bundle: Path, texts: list[str]) -> Speed:
    """Open a bundle and time it."""
    with Encoder(bundle) as encoder:
        encoder.warmup()
        encoder.encode(texts[:64])
        rate = len(texts) / seconds(lambda: encoder.encode(texts))
        return Speed(rate, median(seconds_each(encoder.encode, texts[:200])))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--column")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    texts = list(read_texts(arguments.texts, arguments.column))
    candidates = {number: partial(measure, bundle, texts) for number, bundle in enumerate(arguments.bundles)}
    found = interleaved(candidates, arguments.rounds)
    runs = f"{len(texts)} texts, medians of {arguments.rounds} interleaved rounds (lowest to highest ratio)"
    print(made_by("precision", runs) + "\n")
    print("| bundle | texts/s | ratio | one text | ratio |\n|---|---|---|---|---|")
    first_rates, first_singles = zip(*found[0], strict=True)
    for number, bundle in enumerate(arguments.bundles):
        rates, singles = zip(*found[number], strict=True)
        print(
            f"| {bundle.name} | {median(rates):.0f} | {spread(ratios(rates, first_rates))} |"
            f" {1000 * median(singles):.2f} ms | {spread(ratios(first_singles, singles))} |"
        )


if __name__ == "__main__":
    main()
