"""What the runtime's numbers were chosen from: `python -m benchmarks.budgets BUNDLE ... --texts FILE`.

Padded tokens per run in a large call; few texts as one run of all threads against runs side by side; and the same texts
in several processes of one thread against one process. Interleaved rounds, medians; run nothing else meanwhile.
"""

import argparse
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from whiten_runtime import Encoder
from whiten_runtime.files.texts import read_texts
from whiten_runtime.inference import batching, engine
from whiten_runtime.ort.processor import available_cpus

BUDGETS = (64, 128, 256, 512, 1024, 2048)
COUNTS = (2, 4, 8, 16, 32)

PROCESS = """
import sys, time
from whiten_runtime import Encoder
texts = open(sys.argv[2], encoding="utf-8").read().splitlines()[int(sys.argv[3]) :: int(sys.argv[4])]
encoder = Encoder(sys.argv[1], threads=int(sys.argv[5]))
encoder.encode(texts[:64])
print(flush=True)
sys.stdin.readline()
start = time.perf_counter()
encoder.encode(texts)
print(time.perf_counter() - start)
"""


def seconds(encoder: Encoder, texts: list[str]) -> float:
    start = time.perf_counter()
    encoder.encode(texts)
    return time.perf_counter() - start


def large_calls(encoder: Encoder, texts: list[str], rounds: int) -> dict[int, float]:
    """Texts per second by token budget."""
    times: dict[int, list[float]] = {budget: [] for budget in BUDGETS}
    usual = encoder._engine.schedule
    for _ in range(rounds):
        for budget, measured in times.items():
            encoder._engine.schedule = replace(usual, budget=budget)
            measured.append(seconds(encoder, texts))
    encoder._engine.schedule = usual
    return {budget: len(texts) / median(measured) for budget, measured in times.items()}


def few_texts(encoder: Encoder, texts: list[str], rounds: int) -> dict[int, tuple[float, float]]:
    """Milliseconds of a call by its number of texts: all threads on one run, and runs side by side."""
    figures = {}
    for count in COUNTS:
        together, beside = [], []
        for start in range(0, rounds * 8 * count, count):
            part = texts[start % (len(texts) - count) :][:count]
            batching.LANE_TOKENS = 10**9
            together.append(seconds(encoder, part))
            batching.LANE_TOKENS = 1
            beside.append(seconds(encoder, part))
        figures[count] = (1000 * median(together), 1000 * median(beside))
    batching.LANE_TOKENS = 48
    return figures


def processes(bundle: Path, texts: str, count: int, threads: int) -> float:
    """Seconds until each of several processes has embedded its share."""
    running = []
    for number in range(count):
        command = [sys.executable, "-c", PROCESS, str(bundle), texts, str(number), str(count), str(threads)]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return max(float(process.communicate()[0]) for process in running)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--texts", required=True, help="one a line")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    texts = list(read_texts(arguments.texts, None))[: arguments.count]
    threads = available_cpus()
    engine._LITTLE_WORK = 0  # otherwise small graphs have one thread for few texts in any case
    for bundle in arguments.bundles:
        with Encoder(bundle) as encoder:
            encoder.encode(texts[:64])
            large = large_calls(encoder, texts, arguments.rounds)
            few = few_texts(encoder, texts, arguments.rounds)
        shares = [
            (processes(bundle, arguments.texts, threads, 1), processes(bundle, arguments.texts, 1, threads))
            for _ in range(arguments.rounds)
        ]
        print(
            f"\n{bundle.parent.name}/{bundle.name}, {len(texts)} texts, {threads} threads, {arguments.rounds} rounds\n"
        )
        print("| padded tokens per run | " + " | ".join(map(str, large)) + " |\n" + "|---" * (len(large) + 1) + "|")
        print("| texts/s | " + " | ".join(f"{rate:.0f}" for rate in large.values()) + " |\n")
        print("| texts in a call | " + " | ".join(map(str, few)) + " |\n" + "|---" * (len(few) + 1) + "|")
        for index, name in enumerate(("all threads on one run, ms", "runs side by side, ms")):
            print(f"| {name} | " + " | ".join(f"{pair[index]:.2f}" for pair in few.values()) + " |")
        ratio = median(several / one for several, one in shares)
        print(f"\n{threads} processes of one thread take {ratio:.2f} times as long as one of {threads} threads.")


if __name__ == "__main__":
    main()
