"""One engine in a process of its own: prepare it, or load it, run the workloads and print one JSON line.

Started by `benchmarks.peers`:
`python -m benchmarks.peers.worker prepare|measure|cold ENGINE CHECKPOINT FOLDER WORKLOADS THREADS [VECTORS]`.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.peers.engines import Loaded, load, prepare


def peak_megabytes() -> float:
    """Most memory that was resident. Linux counts a parent's peak in getrusage, but not here."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def measure(engine: Loaded, workloads: dict[str, list[str]], vectors: str | None) -> dict[str, float]:
    """Texts per second of each workload in one call; of "one", milliseconds of a text at a time."""
    engine.many(workloads["short"][:64])
    figures = {}
    for name, texts in workloads.items():
        if name == "one":
            seconds = []
            for text in texts:
                start = time.perf_counter()
                engine.one(text)
                seconds.append(time.perf_counter() - start)
            figures[name] = 1000 * median(seconds)
            continue
        start = time.perf_counter()
        result = engine.many(texts)
        figures[name] = len(texts) / (time.perf_counter() - start)
        if name == "short":
            figures["peak_mb"] = peak_megabytes()
            if vectors is not None:
                np.save(vectors, np.asarray(result, np.float32))
    return figures


def main() -> None:
    action, engine, checkpoint, folder, workloads, threads, *vectors = sys.argv[1:]
    if action == "prepare":
        prepare(engine, Path(checkpoint), Path(folder))
        return
    texts = json.loads(Path(workloads).read_text())
    loaded = load(engine, Path(checkpoint), Path(folder), int(threads))
    if action == "cold":
        loaded.one(texts["one"][0])
        return
    print(json.dumps(measure(loaded, texts, vectors[0] if vectors else None)))


if __name__ == "__main__":
    main()
