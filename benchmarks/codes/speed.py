"""Time search among codes with one thread: one query and many, all codes and candidates by signs.

The time is that of the processor: on a machine with other work, it changes less than the clock's.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.timing import interleaved
from whiten_whitening.codes.coder import Coder

_WIDTH, _ROUNDS, _MANY = 384, 5, 64


def speed_lines(count: int) -> Iterator[str]:
    """Yield a table: million codes a second, one thread; for many queries, codes times queries."""
    random = np.random.default_rng(0)
    basis = random.normal(size=(_WIDTH, _WIDTH)) * np.geomspace(3, 0.3, _WIDTH)
    vectors = (random.normal(size=(20_000, _WIDTH)) @ basis).astype(np.float32)
    many = f"{_MANY} queries"
    yield f"| {count:,} codes | bytes | one query | {many} | one, 1,000 candidates | {many}, 1,000 candidates |"
    yield "|---|---|---|---|---|---|"
    for bits, dims in ((8, 384), (4, 384), (4, 256), (2, 256), (1, 256)):
        coder = Coder.fit(vectors, bits, dims)
        codes = coder.codes(np.resize(coder.encode_codes(vectors), (count, coder.bytes)))
        with threadpool_limits(1):
            candidates = {
                (queries, among): partial(coder.search, vectors[:queries], codes, 10, among)
                for among in (None, 1000)
                for queries in (1, _MANY)
            }
            found = interleaved(
                {key: partial(_cpu_seconds, run) for key, run in candidates.items()}, _ROUNDS, warm_up=1
            )
        cells = [f"{key[0] * count / median(times) / 1e6:.1f}" for key, times in found.items()]
        yield f"| {bits} bits, {dims} dims | {coder.bytes} | " + " | ".join(cells) + " |"


def _cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start
