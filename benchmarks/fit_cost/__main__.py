"""Compare the time of fitting a whitening with the time of embedding the same sentences, in one process.

Usage: python -m benchmarks.fit_cost BUNDLE ... --texts FILE [--rounds 5]
"""

import argparse
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.machine import made_by
from benchmarks.timing import interleaved, ratios, seconds, spread
from whiten_export.corpus.fitting import fit_corpus
from whiten_export.corpus.statistics import Statistics
from whiten_export.pipeline.describe import describe_whitening
from whiten_runtime.bundle.graph_names import unwhitened_output
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.inference.loading import load_bundle
from whiten_whitening.maps import fit_map


def measure(path: Path, texts: str, rounds: int) -> None:
    """Time a bundle, and print a line of the table."""
    value = unwhitened_output(read_manifest(path))
    bundle, embedder = load_bundle(path, value=value)
    output = embedder.whole(value)
    sentences = list(Corpus((texts,), None, None))
    gathered: Statistics | None = None

    def embed() -> None:
        for _window in embedder.windows(sentences, output):
            pass

    def fit() -> None:
        nonlocal gathered
        gathered = fit_corpus(Corpus((texts,), None, None), embedder, value)

    def describe() -> None:
        assert gathered is not None
        describe_whitening(fit_map(gathered.moments), gathered)

    candidates = {
        "embedding": partial(seconds, embed),
        "fitting": partial(seconds, fit),
        "map": partial(seconds, describe),
    }
    found = interleaved(candidates, rounds, warm_up=1)
    whole = [fitting + mapping for fitting, mapping in zip(found["fitting"], found["map"], strict=True)]
    embedding, fitting, mapping = (median(times) for times in found.values())
    print(
        f"| {bundle.manifest.name} | {len(sentences):,} | {embedding:.2f} | {fitting:.2f} | "
        f"{spread(ratios(whole, found['embedding']), 3)} | {mapping:.2f} |",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_cost", description=__doc__)
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(made_by("fit_cost", f"medians of {arguments.rounds} interleaved rounds") + "\n")
    print("| bundle | sentences | embedding s | fitting s | ratio, median (least to most) | the map, s |")
    print("|---|---|---|---|---|---|")
    for path in arguments.bundles:
        measure(path, arguments.texts, arguments.rounds)


if __name__ == "__main__":
    main()
