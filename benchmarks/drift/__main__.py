"""Measure drift between corpora: fit a bundle anew on a part of each corpus, and show it the others and mixtures.

Usage: python -m benchmarks.drift BUNDLE FILE FILE ...
"""

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import made_by
from whiten_export.pipeline.fit import fit_bundle
from whiten_export.pipeline.refit import refit_bundle
from whiten_runtime import DriftMonitor, Encoder
from whiten_runtime.files.corpus import Corpus
from whiten_whitening.maps import WhiteningSpec

Vectors = NDArray[np.float32]

_SENTENCES, _TESTED, _SMALL, _REPEATS = 4000, 2000, 100, 40


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    corpora = {}
    for file in arguments.files:
        sentences = list(Corpus((str(file),), None, None))
        random.Random(0).shuffle(sentences)
        corpora[file.name.split(".")[0]] = sentences
    print(made_by("drift", "one run") + "\n")
    print("| fitted on | shown | mean shift | variance / expected | average cosine | IsoScore (expected) | verdict |")
    print("|---|---|---|---|---|---|---|")
    for name in corpora:
        with tempfile.TemporaryDirectory() as folder:
            measure(arguments.bundle, name, corpora, Path(folder))


def measure(bundle: Path, name: str, corpora: dict[str, list[str]], folder: Path) -> None:
    """Fit on one corpus, and print its lines of the table."""
    own = corpora[name]
    size = min(_SENTENCES, 2 * len(own) // 3)
    (folder / "own.txt").write_text("\n".join(own[:size]) + "\n", "utf-8")
    fitted = fit_bundle(bundle, Corpus((str(folder / "own.txt"),), None, None))
    refit_bundle(bundle, fitted, WhiteningSpec(), folder / "bundle")
    unseen = own[size : size + _TESTED]
    with Encoder(folder / "bundle") as encoder:
        monitor = DriftMonitor(folder / "bundle")
        kept = encoder.encode(unseen)
        shown = {f"{name}, unseen": kept}
        for other, sentences in corpora.items():
            if other == name:
                continue
            foreign = encoder.encode(sentences[:_TESTED])
            for share in (0.03, 0.1, 0.3):
                shown[f"{1 - share:.0%} {name}, {share:.0%} {other}"] = _mixed(kept, foreign, share)
            shown[other] = foreign
        for what, vectors in shown.items():
            monitor.reset()
            found = monitor.update(vectors).report()
            print(
                f"| {name} | {what} | {found.mean_shift:.3f} | "
                f"{found.spectrum_ratio / found.expected_spectrum_ratio:.2f} | {found.average_cosine:.3f} | "
                f"{found.iso_score:.2f} ({found.expected_iso_score:.2f}) | {found.verdict} |",
                flush=True,
            )
        alarms = 0
        generator = random.Random(1)
        for _ in range(_REPEATS):
            monitor.reset()
            few = kept[generator.sample(range(len(kept)), _SMALL)]
            alarms += monitor.update(few).report().verdict != "close"
        print(f"| {name} | {_SMALL} of {name}, unseen, {_REPEATS} times | | | | | {alarms} not close |", flush=True)


def _mixed(own: Vectors, foreign: Vectors, share: float) -> Vectors:
    """Replace a share of the vectors by foreign ones."""
    count = round(share * len(own))
    return np.concatenate([own[count:], foreign[:count]])


if __name__ == "__main__":
    main()
