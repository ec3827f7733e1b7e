"""Test the measured rate of lanes."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from whiten_serving.batching.rate import Rate

batches = st.lists(st.tuples(st.integers(1, 10_000), st.floats(1e-4, 10)), min_size=1, max_size=50)


def test_nothing_is_known_before_the_first_batch() -> None:
    assert Rate().seconds_for(1000, 2) == 0


@given(batches, st.integers(1, 16))
def test_the_rate_is_between_those_of_the_batches(measured: list[tuple[int, float]], lanes: int) -> None:
    rate = Rate()
    for tokens, seconds in measured:
        rate.add(tokens, seconds)
    each = [seconds / tokens for tokens, seconds in measured]
    found = rate.seconds_for(1000, lanes) * lanes / 1000
    assert min(each) * 0.999 <= found <= max(each) * 1.001


def test_a_change_is_followed_within_some_batches() -> None:
    rate = Rate()
    for _ in range(100):
        rate.add(256, 0.01)
    for _ in range(50):
        rate.add(256, 0.02)
    assert rate.seconds_for(256, 1) == pytest.approx(0.02, rel=0.1)
