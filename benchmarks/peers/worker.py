"""Prepare one engine, or load it, run the workloads and print one JSON line; in a process of its own.

Started by `benchmarks.peers`:
`python -m benchmarks.peers.worker prepare|vectors|measure|cold ENGINE CHECKPOINT FOLDER WORKLOADS THREADS [VECTORS]`.
`vectors` writes those of the short texts, and of the long ones where there are some, to a file.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.peers.engines import Loaded, load, prepare
from benchmarks.process_memory import memory
from benchmarks.timing import seconds_each


def measure(engine: Loaded, workloads: dict[str, list[str]]) -> dict[str, float]:
    """Return texts per second of each workload in one call; for "one", milliseconds of a text at a time."""
    engine.many(workloads["short"][:64])
    figures: dict[str, float] = {}
    for name, texts in workloads.items():
        if name == "one":
            figures[name] = 1000 * median(seconds_each(engine.one, texts))
            continue
        start = time.perf_counter()
        engine.many(texts)
        figures[name] = len(texts) / (time.perf_counter() - start)
        if name == "short":
            figures["peak_mb"] = memory()["VmHWM"] / 1e6
    figures["rss_mb"] = memory()["VmRSS"] / 1e6  # after texts in bulk and single ones
    return figures


def main() -> None:
    """Do the action that is named on the command line."""
    action, engine, checkpoint, folder, workloads, threads, *vectors = sys.argv[1:]
    if action == "prepare":
        prepare(engine, Path(checkpoint), Path(folder))
        return
    texts = json.loads(Path(workloads).read_text())
    loaded = load(engine, Path(checkpoint), Path(folder), int(threads))
    if action == "cold":
        loaded.one(texts["one"][0])
        return
    if action == "vectors":
        rows = [loaded.many(texts[name]) for name in ("short", "long") if name in texts]
        np.save(vectors[0], np.concatenate(rows).astype(np.float32))
        return
    print(json.dumps(measure(loaded, texts)))


if __name__ == "__main__":
    main()
