"""One text at a time while another bundle of the same process is alive, with and without spinning threads.

Run as `python -m benchmarks.neighbours BUNDLE`, with nothing else running. onnxruntime's threads spin between runs by
default; whiten's stop when a run ends, or never spin at all with `spinning=False`.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from whiten_runtime import Encoder
from whiten_runtime.ort import session

WAYS = {
    "onnxruntime's default": (True, ("session.intra_op.allow_spinning", "1")),
    "whiten": (True, ("session.force_spinning_stop", "1")),
    "whiten, spinning=False": (False, None),
}
TEXT = "A man is playing a guitar on the stage."


def milliseconds(runs: int, run: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Median time of a call, each after another call that is not timed."""
    times = []
    for _ in range(runs):
        before()
        start = time.perf_counter()
        run()
        times.append(1000 * (time.perf_counter() - start))
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=100)
    arguments = parser.parse_args()
    figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in WAYS}
    for _ in range(arguments.rounds):
        for name, (spinning, entry) in WAYS.items():
            if entry:
                session._SPIN_DURING_RUNS = entry
            with (
                Encoder(arguments.bundle, spinning=spinning) as one,
                Encoder(arguments.bundle, spinning=spinning) as other,
            ):
                one.warmup()
                other.warmup()
                alone = milliseconds(arguments.runs, lambda: one.encode(TEXT))
                paused = milliseconds(arguments.runs, lambda: one.encode(TEXT), lambda: time.sleep(0.005))
                beside = milliseconds(arguments.runs, lambda: one.encode(TEXT), lambda: other.encode(TEXT))
            figures[name].append((alone, paused, beside))
    print(f"{arguments.bundle.name}, medians of {arguments.rounds} interleaved rounds of {arguments.runs} texts\n")
    print("| threads | one text, ms | after a pause of 5 ms | right after the other bundle |\n|---|---|---|---|")
    for name, rounds in figures.items():
        print(f"| {name} | " + " | ".join(f"{median(column):.2f}" for column in zip(*rounds, strict=True)) + " |")


if __name__ == "__main__":
    main()
