"""Measure parity and size of the real checkpoint for every kind of bundle.

Run as `python -m benchmarks.parity > benchmarks/parity/table.md`.
Exports all-MiniLM-L6-v2 with each choice of layers, pooling and whitening, and prints what the gate measured.
"""

import argparse
import sys
import tempfile
from itertools import product
from pathlib import Path

from benchmarks.machine import made_by
from whiten_export.pipeline.export_model import export_bundle
from whiten_export.pipeline.recipe import Recipe
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.errors import ParityError, UsageError
from whiten_whitening.maps import Method

LAYERS = ((1, 6), (1,), (0,), (6,))
POOLINGS: tuple[Pooling, ...] = ("mean", "cls")
WHITENINGS: dict[str, tuple[Method | None, int | None]] = {
    "pca": ("pca", None),
    "pca, 128": ("pca", 128),
    "none": (None, None),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__)
    parser.add_argument("--max-sentences", type=int, default=4000)
    sentences = parser.parse_args().max_sentences
    print(made_by(f"parity --max-sentences {sentences}", "one run"))
    print("all-MiniLM-L6-v2, built-in corpus, against PyTorch in float64.\n")
    print("| layers | pooling | whitening | rank | 1 - worst cosine | worst difference / norm | vectors | size |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number, (layers, pooling, name) in enumerate(product(LAYERS, POOLINGS, WHITENINGS)):
            method, dim = WHITENINGS[name]
            recipe = Recipe.of(
                "minilm",
                layers=layers,
                pooling=pooling,
                whitening=method,
                dim=dim,
                max_sentences=sentences if method else None,
            )
            start = f"| {','.join(map(str, layers))} | {pooling} | {name} |"
            try:
                manifest = export_bundle(recipe, Path(folder) / str(number)).manifest
            except (UsageError, ParityError) as error:
                print(start, f"refused: {_shortly(error)} | | | | |")
                continue
            parity, whitening = manifest.parity, manifest.whitening
            size = sum(record.bytes for file, record in manifest.files.items() if file.startswith("onnx/"))
            assert parity is not None
            print(
                f"{start} {whitening.rank if whitening else ''} | {1 - parity.min_cosine:.1e} |"
                f" {parity.max_difference:.1e} | {parity.vectors} | {size / 1e6:.1f} MB |"
            )
            sys.stdout.flush()


def _shortly(error: UsageError | ParityError) -> str:
    if isinstance(error, UsageError):
        return "every text has the same vector"
    assert "as far from float64" in str(error)
    return "PyTorch's float32 is as far from float64 as the graph"


if __name__ == "__main__":
    main()
