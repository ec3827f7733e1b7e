"""Measure the resident memory of a process that embeds: `python -m benchmarks.memory BUNDLE ... --texts FILE`.

Each figure comes from a new process: after the import, after loading, after 50 texts one at a time or 1,000 in one
call, its peak, and by how much it grew over 20,000 texts of random lengths after the first 2,000.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.machine import made_by
from benchmarks.process_memory import memory
from whiten_runtime.files.texts import read_texts


def resident() -> float:
    """Return the megabytes of this process that are in memory now."""
    return memory()["VmRSS"] / 1e6


def observe(bundle: str, texts: list[str], use: str) -> dict[str, float]:
    """Embed in this process, and return megabytes at each step.

    Args:
        bundle: its folder.
        texts: what to embed.
        use: "one" for texts one at a time, "many" for one call, "long" for many calls of random size.
    """
    from whiten_runtime import Encoder

    figures = {"imported": resident()}
    encoder = Encoder(bundle)
    figures["loaded"] = resident()
    if use == "one":
        for text in texts[:50]:
            encoder.encode(text)
    elif use == "many":
        encoder.encode(texts[:1000])
    else:
        figures["growth"] = _growth(encoder.encode, " ".join(texts).split())
    figures["used"] = resident()
    figures["peak"] = memory()["VmHWM"] / 1e6
    return figures


def _growth(encode: Callable[[list[str]], object], words: list[str]) -> float:
    """Return the share by which resident memory grows over 20,000 texts, after the first 2,000."""
    generator, done = random.Random(0), 0
    early: float | None = None
    while done < 20_000:
        texts = []
        for _ in range(generator.choice((1, 1, 1, 5, 30, 200))):
            start = generator.randrange(len(words) - 60)
            texts.append(" ".join(words[start : start + generator.randint(1, 60)]))
        encode(texts)
        done += len(texts)
        if early is None and done >= 2_000:
            early = resident()
    assert early is not None
    return resident() / early - 1


def main() -> None:
    """Print the table, or one process's figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("bundles", nargs="+")
    parser.add_argument("--texts", required=True)
    parser.add_argument("--use", choices=("one", "many", "long"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.use:
        texts = list(read_texts(arguments.texts, None))
        print(json.dumps(observe(arguments.bundles[0], texts, arguments.use)))
        return
    print(made_by("memory", "one run, a new process for each figure") + "\n")
    print("| bundle | imported | loaded | peak, 50 texts one by one | peak, 1,000 in one call | growth |")
    print("|---|---|---|---|---|---|")
    for bundle in arguments.bundles:
        figures = {}
        for use in ("one", "many", "long"):
            command = [sys.executable, "-m", "benchmarks.memory", bundle, "--texts", arguments.texts, "--use", use]
            figures[use] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        one, many = figures["one"], figures["many"]
        megabytes = " | ".join(
            f"{value:.0f} MB" for value in (one["imported"], one["loaded"], one["peak"], many["peak"])
        )
        print(f"| {Path(bundle).name} | {megabytes} | {100 * figures['long']['growth']:.1f} % |")


if __name__ == "__main__":
    main()
