"""Fit a whitening on many vectors, from a generator and from a mapped file: seconds, rows a second, and memory.

Usage: python -m benchmarks.many_vectors [--rows 10000000] [--width 768] [--file PATH]
"""

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import made_by
from benchmarks.process_memory import memory
from benchmarks.timing import seconds
from whiten_export import Whitening

Vectors = NDArray[np.float32]

_WINDOW, _BLOCK = 4096, 1 << 16


def block(width: int) -> Vectors:
    """Return correlated vectors off the origin."""
    generator = np.random.default_rng(0)
    mixing = generator.normal(size=(width, width)).astype(np.float32) * np.logspace(0, -2, width, dtype=np.float32)
    rows = generator.normal(size=(_BLOCK, width)).astype(np.float32) @ mixing
    return rows + generator.normal(size=width).astype(np.float32)


def generated(rows: int, width: int) -> Iterator[Vectors]:
    """Yield windows of `rows` vectors, of which no two are the same: a block, shifted by one column in each pass."""
    source = block(width)
    for start in range(0, rows, _WINDOW):
        place = start % _BLOCK
        if place == 0 and start:
            source = np.roll(source, 1, axis=1)
        yield source[place : place + min(_WINDOW, rows - start)]


def mapped(path: Path) -> Iterator[Vectors]:
    """Yield windows of a .npy file."""
    table = np.load(path, mmap_mode="r")
    for start in range(0, len(table), _WINDOW):
        yield table[start : start + _WINDOW]


def write(path: Path, rows: int, width: int) -> None:
    """Write the generated rows as .npy, unless they are there."""
    if path.exists():
        return
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)})
        for part in generated(rows, width):
            part.tofile(file)


def fit(name: str, parts: Iterator[Vectors]) -> None:
    """Fit a whitening, and print a line of the table."""
    whitening, inside, started = Whitening(), 0.0, time.perf_counter()
    base = highest = memory()["RssAnon"]
    for index, part in enumerate(parts):
        inside += seconds(partial(whitening.partial_fit, part))
        if index % 64 == 0:
            highest = max(highest, memory()["RssAnon"])
    finish = seconds(lambda: whitening.weight_)  # computed when asked for
    total, rows, peak = time.perf_counter() - started, whitening.n_samples_seen_, memory()["VmHWM"]
    print(
        f"| {name} | {rows:,} x {whitening.n_features_in_} | {total:.0f} | {inside:.0f} | {rows / inside:,.0f} | "
        f"{finish:.2f} | {(highest - base) / 2**20:.0f} | {peak / 2**20:.0f} |",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_vectors", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--file", type=Path, help="write the rows here and fit from it too")
    arguments = parser.parse_args()
    block(arguments.width)  # what numpy allocates once does not count
    print(made_by("many_vectors", "one run") + "\n")
    print("| source | vectors | s | of which fitting | vectors/s | finishing s | memory, MiB more | peak RSS, MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for rows in (arguments.rows // 100, arguments.rows):
        fit("generator", generated(rows, arguments.width))
    if arguments.file:
        write(arguments.file, arguments.rows, arguments.width)
        fit("mapped file", mapped(arguments.file))


if __name__ == "__main__":
    main()
