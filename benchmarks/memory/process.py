"""Embed in this process, and print its memory at each step as one JSON line.

Run by `benchmarks.memory`: `python -m benchmarks.memory.process BUNDLE FILE one|many|long`. Everything that this module
imports counts in its figures.
"""

import json
import random
import sys
from collections.abc import Callable

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


if __name__ == "__main__":
    bundle, file, use = sys.argv[1:]
    print(json.dumps(observe(bundle, list(read_texts(file, None)), use)))
