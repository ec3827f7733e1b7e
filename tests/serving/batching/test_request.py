"""Test how the vectors of a request are put together."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from support.runners import FakeRunner, request_of


@given(st.data())
def test_vectors_are_kept_in_order_however_they_come(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    request = request_of(FakeRunner(), *([1] for _ in range(count)))
    want = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    left = list(range(count))
    while left:
        part = sorted(data.draw(st.sets(st.sampled_from(left), min_size=1)))
        left = [index for index in left if index not in part]
        assert request.keep(part, want[part]) == (not left)
    request.complete()
    np.testing.assert_array_equal(request.result, want)
    assert request.ended > 0


def test_an_empty_text_counts_as_a_token() -> None:
    request = request_of(FakeRunner(), [], [1, 2])
    assert (request.tokens, request.waiting, request.left) == (3, 3, 2)
