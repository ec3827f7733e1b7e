"""Measure the resident memory of a process that embeds: `python -m benchmarks.memory BUNDLE ... --texts FILE`.

Each figure comes from a new process: after the import, after loading, after 50 texts one at a time or 1,000 in one
call, its peak, and by how much it grew over 20,000 texts of random lengths after the first 2,000.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import made_by


def measure(bundle: str, texts: str, use: str) -> dict[str, float]:
    """Return the figures of one new process, in megabytes but for its growth; see `benchmarks.memory.process`."""
    command = [sys.executable, "-m", "benchmarks.memory.process", bundle, texts, use]
    figures: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return figures


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("bundles", nargs="+")
    parser.add_argument("--texts", required=True)
    arguments = parser.parse_args()
    print(made_by("memory", "one run, a new process for each figure") + "\n")
    print("| bundle | imported | loaded | peak, 50 texts one by one | peak, 1,000 in one call | growth |")
    print("|---|---|---|---|---|---|")
    for bundle in arguments.bundles:
        figures = {use: measure(bundle, arguments.texts, use) for use in ("one", "many", "long")}
        one, many = figures["one"], figures["many"]
        megabytes = " | ".join(
            f"{value:.0f} MB" for value in (one["imported"], one["loaded"], one["peak"], many["peak"])
        )
        print(f"| {Path(bundle).name} | {megabytes} | {100 * figures['long']['growth']:.1f} % |")


if __name__ == "__main__":
    main()
