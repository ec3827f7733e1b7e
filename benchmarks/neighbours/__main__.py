"""Time one text while another bundle of the same process is open, with and without spinning threads.

Run as `python -m benchmarks.neighbours BUNDLE`, with nothing else running. onnxruntime's threads spin between runs by
default; whiten's stop when a run ends, or never spin at all with `spinning=False`.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.machine import made_by
from benchmarks.timing import interleaved, seconds
from whiten_runtime import Encoder
from whiten_runtime.ort import session

WAYS = {
    "onnxruntime's default": (True, ("session.intra_op.allow_spinning", "1")),
    "whiten": (True, ("session.force_spinning_stop", "1")),
    "whiten, spinning=False": (False, None),
}
TEXT = "A man is playing a guitar on the stage."


def milliseconds(runs: int, run: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Return the median time of a call; `before` is called ahead of each, and not timed."""
    times = []
    for _ in range(runs):
        before()
        times.append(1000 * seconds(run))
    return median(times)


def measure(bundle: Path, runs: int, spinning: bool, entry: tuple[str, str] | None) -> tuple[float, float, float]:
    """Open a bundle twice; return milliseconds of a text alone, after a pause, and after a text of the other."""
    if entry:
        session._SPIN_DURING_RUNS = entry
    with Encoder(bundle, spinning=spinning) as one, Encoder(bundle, spinning=spinning) as other:
        one.warmup()
        other.warmup()
        run = partial(one.encode, TEXT)
        alone = milliseconds(runs, run)
        paused = milliseconds(runs, run, lambda: time.sleep(0.005))
        return alone, paused, milliseconds(runs, run, partial(other.encode, TEXT))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbours", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=100)
    arguments = parser.parse_args()
    candidates = {name: partial(measure, arguments.bundle, arguments.runs, *way) for name, way in WAYS.items()}
    found = interleaved(candidates, arguments.rounds)
    runs = f"medians of {arguments.rounds} interleaved rounds of {arguments.runs} texts"
    print(made_by("neighbours", f"{arguments.bundle.name}, {runs}") + "\n")
    print("| threads | one text, ms | after a pause of 5 ms | right after the other bundle |\n|---|---|---|---|")
    for name, rounds in found.items():
        print(f"| {name} | " + " | ".join(f"{median(column):.2f}" for column in zip(*rounds, strict=True)) + " |")


if __name__ == "__main__":
    main()
