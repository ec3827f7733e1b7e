"""Fit a whitening on many vectors: seconds, rows a second, and memory, from a generator and from a mapped file.

Usage: python -m benchmarks.many_vectors [--rows 10000000] [--width 768] [--file PATH]
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from whiten_export import Whitening

_WINDOW, _BLOCK = 4096, 1 << 16


def memory() -> tuple[float, float]:
    """Anonymous and peak resident memory of this process, MB."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    anonymous, peak = (int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "VmHWM"))
    return anonymous, peak


def block(width: int) -> np.ndarray:
    """Correlated vectors off the origin, float32."""
    generator = np.random.default_rng(0)
    mixing = generator.normal(size=(width, width)).astype(np.float32) * np.logspace(0, -2, width, dtype=np.float32)
    rows = generator.normal(size=(_BLOCK, width)).astype(np.float32) @ mixing
    return rows + generator.normal(size=width).astype(np.float32)


def generated(rows: int, width: int) -> Iterator[np.ndarray]:
    """Windows of `rows` vectors, of which no two are the same: a block, turned from pass to pass."""
    source = block(width)
    for start in range(0, rows, _WINDOW):
        place = start % _BLOCK
        if place == 0 and start:
            source = np.roll(source, 1, axis=1)
        yield source[place : place + min(_WINDOW, rows - start)]


def mapped(path: Path) -> Iterator[np.ndarray]:
    """Windows of a .npy file."""
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


def fit(name: str, parts: Iterator[np.ndarray]) -> None:
    whitening, inside, started = Whitening(), 0.0, time.perf_counter()
    base, _ = memory()
    highest = base
    for index, part in enumerate(parts):
        before = time.perf_counter()
        whitening.partial_fit(part)
        inside += time.perf_counter() - before
        if index % 64 == 0:
            highest = max(highest, memory()[0])
    before = time.perf_counter()
    whitening.weight_  # noqa: B018 - computed when asked for
    finish, rows = time.perf_counter() - before, whitening.n_samples_seen_
    seconds, (_, peak) = time.perf_counter() - started, memory()
    print(
        f"| {name} | {rows:,} x {whitening.n_features_in_} | {seconds:.0f} | {inside:.0f} | {rows / inside:,.0f} | "
        f"{finish:.2f} | {highest - base:.0f} | {peak:.0f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--file", type=Path, help="write the rows here and fit from it too")
    arguments = parser.parse_args()
    block(arguments.width)
    print("| source | vectors | s | of which fitting | vectors/s | finishing s | memory, MB more | peak RSS, MB |")
    print("|---|---|---|---|---|---|---|---|")
    for rows in (arguments.rows // 100, arguments.rows):
        fit("generator", generated(rows, arguments.width))
    if arguments.file:
        write(arguments.file, arguments.rows, arguments.width)
        fit("mapped file", mapped(arguments.file))


if __name__ == "__main__":
    main()
