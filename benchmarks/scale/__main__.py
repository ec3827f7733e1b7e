"""Measure `whiten embed-many` beside `encode` in one process a core: `python -m benchmarks.scale BUNDLE --texts FILE`.

Both embed the same texts with the same number of processes of one thread. CPU time is that of all processes, from
start to end, with what they import and open: it holds where other programs use the machine, unlike time that passes.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from benchmarks.machine import made_by
from benchmarks.timing import interleaved, median_ratio, spread
from whiten_scale.workers import ONE_THREAD

_PLAIN = """
import sys
from whiten import Encoder
bundle, file, number, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
texts = open(file, encoding="utf-8").read().splitlines()
part = len(texts) // count
with Encoder(bundle, threads=1) as encoder:
    encoder.encode(texts[part * number : part * (number + 1)])
"""
_MANY = "from whiten_runtime.commands.main import main; main()"


@dataclass(frozen=True)
class Cost:
    """Holds what one run took.

    Attributes:
        seconds: seconds that passed.
        cpu: CPU seconds of all processes.
    """

    seconds: float
    cpu: float


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="A sentence a line; they are repeated as needed.")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--per-shard", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--types", nargs="*", default=["float32", "float16", "codes"])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("table.md"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.txt"
        lines = [line for line in arguments.texts.read_text("utf-8").splitlines() if line.strip()]
        file.write_text("\n".join(islice(cycle(lines), arguments.count)) + "\n", "utf-8")
        numbers = iter(range(1_000_000))

        def many(stored: str) -> Cost:
            out = Path(folder) / f"out{next(numbers)}"
            options = ["--per-shard", arguments.per_shard, "--workers", arguments.workers, "--type", stored]
            return _cost([[_MANY, "embed-many", arguments.bundle, "--input", file, "--out", out, *options]])

        def plain() -> Cost:
            count = arguments.workers
            return _cost([[_PLAIN, arguments.bundle, file, number, count] for number in range(count)])

        candidates: dict[str, Callable[[], Cost]] = {"encode": plain}
        candidates |= {f"embed-many, {stored}": partial(many, stored) for stored in arguments.types}
        found = interleaved(candidates, arguments.rounds)
        size = file.stat().st_size / arguments.count
    runs = f"medians of {arguments.rounds} interleaved rounds"
    rows = [_row(name, costs, found["encode"], arguments.count) for name, costs in found.items()]
    what = (
        f"{arguments.count:,} texts of {size:.0f} bytes, {arguments.workers} processes, {arguments.per_shard:,} a shard"
    )
    head = "| | texts a CPU second | CPU time over encode | time over encode |\n|---|---|---|---|"
    name = arguments.bundle.name
    arguments.out.write_text(
        f"{made_by(f'scale {name}', runs)}\n\n{what}.\n\n{head}\n" + "\n".join(rows) + "\n", "utf-8"
    )


def _row(name: str, costs: list[Cost], plain: list[Cost], count: int) -> str:
    cpu, base = [one.cpu for one in costs], [one.cpu for one in plain]
    ratio = median_ratio([one.seconds for one in costs], [one.seconds for one in plain])
    rates = spread([count / one for one in cpu], 0)
    return f"| {name} | {rates} | {median_ratio(cpu, base):.3f} | {ratio:.2f} |"


def _cost(commands: list[list[object]]) -> Cost:
    """Run processes side by side, and return what they took."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, **ONE_THREAD}
    running = [
        subprocess.Popen([sys.executable, "-c", *map(str, command)], env=environment, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    assert all(process.wait() == 0 for process in running), "a process failed"
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(seconds, cpu)


if __name__ == "__main__":
    main()
