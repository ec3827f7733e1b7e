"""What an evaluation costs besides embedding: python -m benchmarks.evaluation_cost BUNDLE DIR [ROUNDS]

One run: the distinct sentences of the similarity tasks embedded once by `Encoder`, and the whole evaluation, in turns.
"""

import sys
import time
from pathlib import Path
from statistics import median

from whiten_evaluation.embedding import Whitening, embed_texts
from whiten_evaluation.tasks.sts import score_sts
from whiten_evaluation.tasks.sts_files import read_sts
from whiten_runtime import Encoder


def embed(bundle: Path, folder: Path) -> None:
    texts = read_sts(folder).texts
    with Encoder(bundle) as encoder:
        encoder.encode(texts)


def evaluate(bundle: Path, folder: Path, source: str) -> None:
    data, whitening = read_sts(folder), Whitening(source)
    score_sts(data, embed_texts(bundle, data.texts, whitening), whitening)


def seconds(run, *arguments) -> float:
    started = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - started


def main(bundle: Path, folder: Path, rounds: int) -> None:
    data = read_sts(folder)
    print(f"{len(data.tasks)} tasks, {sum(task.pairs for task in data.tasks):,} pairs, {len(data.texts):,} sentences")
    found = {name: [] for name in ("embed", "bundle", "target")}
    for _ in range(rounds):
        found["embed"].append(seconds(embed, bundle, folder))
        for source in ("bundle", "target"):
            found[source].append(seconds(evaluate, bundle, folder, source))
    for name, times in found.items():
        ratios = [own / plain for own, plain in zip(times, found["embed"], strict=True)]
        print(f"{name:8} {median(times):7.2f} s  {median(ratios):.3f} x embedding (median of {rounds})")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 3)
