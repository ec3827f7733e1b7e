"""Compare the time of an evaluation with the time of embedding its sentences once.

Usage: python -m benchmarks.evaluation_cost BUNDLE DIR [--rounds 3]

Embeds the distinct sentences of the similarity tasks with `Encoder`, then evaluates them, in turns.
"""

import argparse
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.machine import made_by
from benchmarks.timing import interleaved, median_ratio, seconds
from whiten_evaluation.embedding import SourceName, WhiteningSource, embed_texts
from whiten_evaluation.tasks.sts import score_sts
from whiten_evaluation.tasks.sts_files import read_sts
from whiten_runtime import Encoder


def embed(bundle: Path, folder: Path) -> None:
    """Read the files and embed their sentences."""
    texts = read_sts(folder).texts
    with Encoder(bundle) as encoder:
        encoder.encode(texts)


def evaluate(bundle: Path, folder: Path, source: SourceName) -> None:
    """Read the files and score the bundle on them."""
    data, whitening = read_sts(folder), WhiteningSource(source)
    score_sts(data, embed_texts(bundle, data.texts, whitening), whitening)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluation_cost", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", metavar="DIR", type=Path, help="the test sets")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    bundle, folder = arguments.bundle, arguments.folder
    data = read_sts(folder)
    candidates = {
        "embed": partial(seconds, partial(embed, bundle, folder)),
        "bundle": partial(seconds, partial(evaluate, bundle, folder, "bundle")),
        "target": partial(seconds, partial(evaluate, bundle, folder, "target")),
    }
    found = interleaved(candidates, arguments.rounds)
    print(made_by("evaluation_cost", f"medians of {arguments.rounds} interleaved rounds"))
    print(f"{len(data.tasks)} tasks, {sum(task.pairs for task in data.tasks):,} pairs, {len(data.texts):,} sentences\n")
    print("| whitening | seconds | times as long as embedding |\n|---|---|---|")
    for name, times in found.items():
        print(f"| {name} | {median(times):.2f} | {median_ratio(times, found['embed']):.3f} |")


if __name__ == "__main__":
    main()
