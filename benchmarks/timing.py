"""Time candidates in interleaved rounds, and compare them by medians and ratios.

A machine's speed changes from minute to minute. So every round runs each candidate once, a ratio is taken within a
round, and a table gives the median of the rounds.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")
Item = TypeVar("Item")


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def seconds_each(run: Callable[[Item], object], items: Iterable[Item]) -> list[float]:
    """Return the seconds of each item, one call at a time."""
    return [seconds(partial(run, item)) for item in items]


def interleaved(
    candidates: Mapping[Name, Callable[[], Result]], rounds: int, warm_up: int = 0
) -> dict[Name, list[Result]]:
    """Run each candidate in turn, and return the results of its rounds but for those that warm up."""
    found: dict[Name, list[Result]] = {name: [] for name in candidates}
    for number in range(warm_up + rounds):
        for name, measure in candidates.items():
            result = measure()
            if number >= warm_up:
                found[name].append(result)
    return found


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median of two candidates' ratios, round by round."""
    return median(a / b for a, b in zip(over, under, strict=True))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Format figures of several rounds as "median (lowest to highest)"."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
