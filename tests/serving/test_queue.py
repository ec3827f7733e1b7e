"""Test how batches are formed of what waits."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.runners import FakeRunner
from whiten_runtime.inference.engine import TokenizedTexts
from whiten_serving.queue import RUN_SHARE, Queue, companions
from whiten_serving.requests import Request


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([10, 60, 10, 60, 10], [0, 2, 4]),
        ([60, 10, 58, 10, 57], [0, 2, 4]),
        ([16] * 20, range(16)),
        ([3, 4, 3], [0, 1, 2]),  # another run would cost more than the padding
    ],
)
def test_texts_of_like_length_share_a_batch(lengths: list[int], found: object) -> None:
    assert sorted(companions(lengths, 256, 256)) == sorted(found)  # type: ignore[call-overload]


def worth(lengths: list[int], chosen: Sequence[int], full: int) -> float:
    """Return the tokens of a batch for what it costs."""
    longest = max(lengths[index] for index in chosen)
    return sum(lengths[index] for index in chosen) / (len(chosen) * longest + full * RUN_SHARE)


def all_batches(lengths: list[int], budget: int, pairs: int | None) -> Iterator[list[int]]:
    """Yield every batch with the first text: of neighbours in the order of lengths, within the bounds."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for start, end in combinations(range(len(order) + 1), 2):
        chosen, longest = order[start:end], lengths[order[end - 1]]
        large = len(chosen) * longest > budget or (pairs is not None and len(chosen) * longest**2 > pairs)
        if 0 in chosen and (len(chosen) == 1 or not large):
            yield chosen


@settings(max_examples=300)
@given(
    st.one_of(st.integers(1, 8), st.integers(1, 60), st.integers(1, 600)).flatmap(
        lambda longest: st.lists(st.integers(1, longest), min_size=1, max_size=14)
    ),
    st.sampled_from([8, 32, 64, 256, 1024]),
    st.sampled_from([64, 256, 1024]),
    st.sampled_from([None, 100, 4000, 10**6]),
)
def test_a_batch_is_nearly_the_best_of_all(lengths: list[int], budget: int, full: int, pairs: int | None) -> None:
    chosen, every = companions(lengths, budget, full, pairs), list(all_batches(lengths, budget, pairs))
    assert sorted(chosen) in map(sorted, every)
    assert worth(lengths, chosen, full) >= 0.8 * max(worth(lengths, one, full) for one in every)


def test_the_batch_of_a_short_text_has_those_that_are_a_little_longer() -> None:
    assert sorted(companions([7, 14, 2, 3, 4, 15, 4, 19, 3, 15, 5], 256, 512)) == [0, 1, 5, 9]
    assert sorted(companions([6, 33, 24, 51, 2, 29, 44, 2, 24, 3, 3, 55], 1024, 256)) != [0, 9, 10]


def test_a_model_whose_requests_have_ended_is_not_kept() -> None:
    """The sessions of a bundle that was replaced are freed."""
    queue, runner = Queue(), FakeRunner()
    for length in (3, 4):
        queue.add(Request(runner, TokenizedTexts([[1] * length]), np.asarray, print))
    batch = queue.take(1, 3)
    assert batch is not None
    queue.end(batch)
    (left,) = queue.expired(np.inf) or [None]
    assert left is not None
    left.finished = True
    queue.drop(left)
    kept = weakref.ref(runner)
    assert queue.expired(0.0) == []
    del batch, left, runner
    gc.collect()
    assert kept() is None
