"""Fit a bundle's whitening again on other corpora, and measure how its stored vectors are found by the new ones.

Run as `python -m benchmarks.alignment BUNDLE CORPUS ... [--sentences N]`; BUNDLE is whitened.
"""

import argparse
from pathlib import Path

from whiten_export.pipeline.align import measure
from whiten_export.pipeline.fit import fit_bundle
from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.files.corpus import Corpus
from whiten_whitening.alignment import Fidelity, align
from whiten_whitening.maps import WhiteningSpec, fit_map
from whiten_whitening.stored import read_map


def main() -> None:
    """Print a table with a row for each corpus and whitening."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alignment", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("corpora", nargs="+")
    parser.add_argument("--sentences", type=int, default=1500)
    arguments = parser.parse_args()
    bundle = open_bundle(arguments.bundle)
    old, dimension = read_map(bundle.path, bundle.manifest), bundle.manifest.dimension
    print(
        f"{bundle.manifest.name}, {dimension} dimensions; median cosine of a sentence's old and new vector, and share"
    )
    print(f"of sentences that find themselves, on up to {arguments.sentences:,} sentences of the new corpus.\n")
    print("| new corpus | whitening | as it is | aligned |")
    print("|---|---|---|---|")
    for name in arguments.corpora:
        statistics = fit_bundle(arguments.bundle, Corpus((name,), None, arguments.sentences))
        for label, weight in (("soft", 0.5), ("full", 0.0)):
            new = fit_map(statistics.moments, WhiteningSpec(dimension=dimension, shrinkage=weight))
            turned = align(new, old.mean, old.weight, statistics.moments)
            cells = [_cell(measure(old, fitted, statistics)) for fitted in (new, turned)]
            print(f"| {Path(name).name}, {statistics.moments.n:,} | {label} | {' | '.join(cells)} |", flush=True)


def _cell(found: Fidelity) -> str:
    return f"{found.median_cosine:.3f}, {100 * found.self_recall:.1f} %"


if __name__ == "__main__":
    main()
