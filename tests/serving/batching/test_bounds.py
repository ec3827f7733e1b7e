"""Test how much may wait, and how moments are told."""

import math
import time
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from whiten_runtime.errors import UsageError
from whiten_serving.batching.bounds import Bounds, moment_in
from whiten_serving.errors import OverloadedError


@pytest.mark.parametrize("wait", [0, -1, math.nan, "10", True, Decimal(1)])
def test_a_wait_that_is_no_time_is_refused(wait: Any) -> None:
    with pytest.raises(UsageError, match=r"max_wait is .*; wanted seconds greater than 0, or None"):
        Bounds(10, wait)


@pytest.mark.parametrize("tokens", [0, -1, 1.5, "10", True])
def test_tokens_that_are_no_number_are_refused(tokens: Any) -> None:
    with pytest.raises(UsageError, match="max_queue_tokens is .*; wanted a whole number of at least 1"):
        Bounds(tokens)


def test_whatever_comes_while_nothing_waits_is_taken() -> None:
    Bounds(10, 1).check(0, 1000, 0)


def test_tokens_bound_what_waits() -> None:
    Bounds(10).check(9, 1, 100)
    with pytest.raises(
        OverloadedError, match=r"too many requests: 9 tokens wait, and 10 may; try again in 3 s"
    ) as error:
        Bounds(10).check(9, 2, 3.0)
    assert error.value.retry_after == 3.0


def test_seconds_bound_what_waits_and_what_comes() -> None:
    Bounds(1000, 2).check(100, 100, 1.0)
    with pytest.raises(OverloadedError, match=r"1\.0 s of work wait, and 2 s may; try again in 1 s"):
        Bounds(1000, 2).check(100, 101, 1.0)
    Bounds(1000, 2).check(100, 101, 0.0)  # the rate is not known yet


@pytest.mark.parametrize("seconds", [math.nan, "2", True, [1]])
def test_a_moment_that_is_no_time_is_refused(seconds: Any) -> None:
    with pytest.raises(UsageError, match=r"deadline is .*; wanted seconds from now, or None"):
        moment_in("deadline", seconds)


@pytest.mark.parametrize("seconds", [0, 2, 0.5, -1, np.float32(1.5), np.int64(3)])
def test_moments(seconds: Any) -> None:
    assert moment_in("deadline", seconds) == pytest.approx(time.monotonic() + float(seconds), abs=0.5)
    assert moment_in("deadline", None) == math.inf
