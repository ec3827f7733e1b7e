"""Measure what the runtime's numbers were chosen from: `python -m benchmarks.budgets BUNDLE ... --texts FILE`.

Padded tokens per run in a large call; few texts as one run of all threads against runs side by side; and the same texts
in several processes of one thread against one process. Run nothing else meanwhile.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.machine import made_by
from benchmarks.timing import interleaved, median_ratio, seconds
from whiten_runtime import Encoder
from whiten_runtime.files.texts import read_texts
from whiten_runtime.opened import reopen
from whiten_runtime.ort.processor import available_cpus
from whiten_runtime.ort.session import SessionOptions, Tuning

BUDGETS = (64, 128, 256, 512, 1024, 2048)
COUNTS = (2, 4, 8, 16, 32)

ONE_RUN, SIDE_BY_SIDE = 10**9, 1
"""Values of `Schedule.worker_tokens` with which the runtime always, or never, takes one run of all threads."""


def large_calls(encoder: Encoder, texts: list[str], rounds: int) -> dict[int, float]:
    """Return texts per second by token budget."""
    usual = encoder._engine.schedule

    def call(budget: int) -> float:
        encoder._engine.schedule = replace(usual, budget=budget)
        return seconds(lambda: encoder.encode(texts))

    times = interleaved({budget: partial(call, budget) for budget in BUDGETS}, rounds)
    encoder._engine.schedule = usual
    return {budget: len(texts) / median(measured) for budget, measured in times.items()}


def few_texts(encoder: Encoder, texts: list[str], rounds: int) -> dict[int, tuple[float, float]]:
    """Return milliseconds of a call by its number of texts: all threads on one run, and runs side by side."""
    usual = encoder._engine.schedule

    def call(worker_tokens: int, parts: Iterator[list[str]]) -> float:
        encoder._engine.schedule = replace(usual, worker_tokens=worker_tokens)
        part = next(parts)
        return seconds(lambda: encoder.encode(part))

    figures = {}
    for count in COUNTS:
        starts = [start % (len(texts) - count) for start in range(0, rounds * 8 * count, count)]
        parts = [texts[start : start + count] for start in starts]
        ways = {worker_tokens: partial(call, worker_tokens, iter(parts)) for worker_tokens in (ONE_RUN, SIDE_BY_SIDE)}
        times = interleaved(ways, len(parts))
        figures[count] = (1000 * median(times[ONE_RUN]), 1000 * median(times[SIDE_BY_SIDE]))
    encoder._engine.schedule = usual
    return figures


def processes(bundle: Path, texts: str, count: int, threads: int) -> float:
    """Return the seconds until each of several processes has embedded its share."""
    running = []
    for number in range(count):
        command = [sys.executable, "-m", "benchmarks.budgets.process", str(bundle), texts]
        command += [str(number), str(count), str(threads)]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return max(float(process.communicate()[0]) for process in running)


def row(name: str, cells: list[str]) -> str:
    """Return a line of a table."""
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the tables of each bundle."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budgets", description=__doc__)
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--texts", required=True, help="one a line")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    texts = list(read_texts(arguments.texts, None))[: arguments.count]
    threads = available_cpus()
    print(made_by("budgets", f"{len(texts)} texts, medians of {arguments.rounds} interleaved rounds"))
    for bundle in arguments.bundles:
        # Without `little_work`, small graphs would have one thread for few texts in any case.
        with reopen(Encoder, bundle, SessionOptions(tuning=Tuning(little_work=0)), True, False) as encoder:
            encoder.encode(texts[:64])
            large = large_calls(encoder, texts, arguments.rounds)
            few = few_texts(encoder, texts, arguments.rounds)
        ways = {
            "several": partial(processes, bundle, arguments.texts, threads, 1),
            "one": partial(processes, bundle, arguments.texts, 1, threads),
        }
        shares = interleaved(ways, arguments.rounds)
        print(f"\n{bundle.parent.name}/{bundle.name}\n")
        print(row("padded tokens per run", [str(budget) for budget in large]) + "\n" + "|---" * (len(large) + 1) + "|")
        print(row("texts/s", [f"{rate:.0f}" for rate in large.values()]) + "\n")
        print(row("texts in a call", [str(count) for count in few]) + "\n" + "|---" * (len(few) + 1) + "|")
        for index, name in enumerate(("all threads on one run, ms", "runs side by side, ms")):
            print(row(name, [f"{pair[index]:.2f}" for pair in few.values()]))
        ratio = median_ratio(shares["several"], shares["one"])
        print(f"\n{threads} processes of one thread take {ratio:.2f} times as long as one of {threads} threads.")


if __name__ == "__main__":
    main()
