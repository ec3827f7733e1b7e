"""Test how batches are formed of what waits."""

import numpy as np
import pytest

from support.runners import FakeRunner
from whiten_runtime.inference.engine import TokenizedTexts
from whiten_serving.queue import WINDOW, Queue, companions
from whiten_serving.requests import Request


def test_a_batch_has_the_first_text_and_no_more_tokens_than_it_may() -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        lengths = random.integers(1, 60, random.integers(1, 80)).tolist()
        found = companions(lengths, 256, 256)
        assert 0 in found
        assert len(set(found)) == len(found)
        assert len(found) * max(lengths[index] for index in found) <= 256
    assert companions([300, 300], 256, 256) == [0]


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


def test_the_oldest_text_is_always_in_the_next_batch() -> None:
    random, queue, runner = np.random.default_rng(0), Queue(), FakeRunner()
    requests = [
        Request(runner, TokenizedTexts([[1] * size for size in random.integers(1, 60, count)]), np.asarray, print)
        for count in random.integers(1, 40, 60)
    ]
    for request in requests:
        queue.add(request)
    texts = sum(len(request.lengths) for request in requests)
    assert texts > 2 * WINDOW
    taken = 0
    while (batch := queue.take(1, 256)) is not None:
        oldest = next(request for request in requests if request.left)
        assert oldest in batch.parts
        for request, indices in batch.parts.items():
            request.left -= len(indices)
        queue.end(batch)
        taken += batch.texts
    assert (taken, queue.tokens, queue.requests) == (texts, 0, 0)
    assert not any(request.waiting for request in requests)
