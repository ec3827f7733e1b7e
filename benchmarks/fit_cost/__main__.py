"""What fitting a whitening costs beside embedding the same corpus: interleaved rounds in one process.

Usage: python -m benchmarks.fit_cost BUNDLE ... --texts FILE [--rounds 5]
"""

import argparse
import time
from pathlib import Path
from statistics import median

from whiten_export.corpus.fitting import fit_corpus
from whiten_export.pipeline.describe import describe_whitening
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import open_parts, unwhitened_output
from whiten_runtime.ort.session import SessionOptions
from whiten_whitening.maps import fit_map


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("| bundle | sentences | embedding s | fitting s | ratio, median (least to most) | the map, s |")
    print("|---|---|---|---|---|---|")
    for path in arguments.bundles:
        measure(path, arguments.texts, arguments.rounds)


def measure(path: Path, texts: str, rounds: int) -> None:
    value = unwhitened_output(read_manifest(path))
    bundle, tokenizer, engine = open_parts(path.absolute(), SessionOptions(), True, value)
    embedder = Embedder(tokenizer, engine)
    output = embedder.whole(value)
    sentences = list(Corpus((texts,), None, None))
    embedding, fitting, mapping = [], [], []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        for _window in embedder.windows(sentences, output):
            pass
        embedding.append(time.perf_counter() - started)
        started = time.perf_counter()
        gathered = fit_corpus(Corpus((texts,), None, None), embedder, value)
        fitting.append(time.perf_counter() - started)
        started = time.perf_counter()
        describe_whitening(fit_map(gathered.moments), gathered)
        mapping.append(time.perf_counter() - started)
    pairs = zip(embedding[1:], fitting[1:], mapping[1:], strict=True)  # the first round warms up
    ratios = sorted((b + c) / a for a, b, c in pairs)
    print(
        f"| {bundle.manifest.name} | {len(sentences):,} | {median(embedding[1:]):.2f} | {median(fitting[1:]):.2f} | "
        f"{median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) | {median(mapping[1:]):.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
