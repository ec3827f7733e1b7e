"""Texts per second and time of one text, for several bundles side by side.

Run as `python -m benchmarks.precision BUNDLE BUNDLE ... --texts FILE`, with nothing else running. One session lives at
a time; rounds are interleaved, so that a machine whose speed drifts slows all bundles alike. Ratios are to the first.
"""

import argparse
import time
from pathlib import Path
from statistics import median

from whiten_runtime import Encoder
from whiten_runtime.files.texts import read_texts


def measure(bundle: Path, texts: list[str]) -> tuple[float, float]:
    """Texts per second of one call, and the median seconds of one text at a time."""
    with Encoder(bundle) as encoder:
        encoder.warmup()
        encoder.encode(texts[:64])
        start = time.perf_counter()
        encoder.encode(texts)
        rate = len(texts) / (time.perf_counter() - start)
        singles = []
        for text in texts[:200]:
            start = time.perf_counter()
            encoder.encode(text)
            singles.append(time.perf_counter() - start)
    return rate, median(singles)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--column")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    texts = list(read_texts(arguments.texts, arguments.column))
    rounds = [[measure(bundle, texts) for bundle in arguments.bundles] for _ in range(arguments.rounds)]
    print(f"{len(texts)} texts, medians of {arguments.rounds} interleaved rounds (lowest to highest ratio)\n")
    print("| bundle | texts/s | ratio | one text | ratio |\n|---|---|---|---|---|")
    for index, bundle in enumerate(arguments.bundles):
        rates, singles = zip(*(results[index] for results in rounds), strict=True)
        faster = [results[index][0] / results[0][0] for results in rounds]
        quicker = [results[0][1] / results[index][1] for results in rounds]
        print(
            f"| {bundle.name} | {median(rates):.0f} | {median(faster):.2f} ({min(faster):.2f} to {max(faster):.2f}) |"
            f" {1000 * median(singles):.2f} ms | {median(quicker):.2f} ({min(quicker):.2f} to {max(quicker):.2f}) |"
        )


if __name__ == "__main__":
    main()
