import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whiten_runtime.inference.batching import (
    GPU_WORKERS,
    TOKEN_BUDGET,
    WORKER_TOKENS,
    Schedule,
    pad_batch,
    plan_batches,
    token_budget,
    workers_for,
)

LENGTHS = st.lists(st.integers(0, 600), max_size=200)


@given(LENGTHS, st.integers(1, 2048), st.none() | st.integers(1, 40))
def test_plan_is_a_partition_within_its_limits(lengths: list[int], budget: int, rows: int | None) -> None:
    groups = plan_batches(lengths, budget, rows)
    assert sorted(np.concatenate(groups)) == list(range(len(lengths))) if groups else lengths == []
    for group in groups:
        longest = max(max(lengths[index] for index in group), 1)
        assert len(group) == 1 or len(group) * longest <= budget
        assert rows is None or len(group) <= rows


@given(LENGTHS, st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_pairs_of_tokens_are_bounded(lengths: list[int], budget: int, pairs: int) -> None:
    for group in plan_batches(lengths, budget, pairs=pairs):
        longest = max(max(lengths[index] for index in group), 1)
        assert len(group) == 1 or len(group) * longest**2 <= pairs


def test_long_texts_on_a_gpu_make_small_batches() -> None:
    schedule = Schedule.on_gpu()
    assert [len(group) for group in schedule.plan([512] * 64)[0]] == [32, 32]
    assert {len(group) for group in schedule.plan([4096] * 8)[0]} == {2}
    assert {len(group) for group in schedule.plan([8192] * 3)[0]} == {1}


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_padding_of_mixed_lengths_is_at_most_5_percent(workers: int) -> None:
    lengths = np.random.default_rng(0).integers(3, 513, 4000)
    groups = plan_batches(lengths, token_budget(lengths.tolist(), workers))
    padded = sum(len(group) * lengths[group].max() for group in groups)
    assert padded / lengths.sum() <= 1.05


@given(st.integers(1, 64), st.integers(1, 400), st.integers(1, 16))
def test_every_worker_has_a_batch_if_there_are_enough_texts(length: int, texts: int, workers: int) -> None:
    lengths = [length] * texts
    workers = workers_for(lengths, workers)
    budget = token_budget(lengths, workers)
    groups = plan_batches(lengths, budget)
    assert len(groups) >= min(workers, texts)
    assert max(len(group) for group in groups) * length <= max(1.25 * TOKEN_BUDGET, length)


def test_a_small_call_is_one_batch() -> None:
    assert workers_for([12, 10, 14], 2) == workers_for([], 2) == 1
    assert workers_for([WORKER_TOKENS] * 2, 64) == 2
    assert len(plan_batches([12, 10, 14], token_budget([12, 10, 14], 1))) == 1
    assert len(plan_batches([0] * 200, token_budget([0] * 200, 1))) == 1
    assert token_budget([], 1) == 1


@given(
    st.lists(st.lists(st.integers(1, 9), max_size=7), min_size=1, max_size=6),
    st.integers(0, 3),
    st.integers(1, 12),
    st.integers(0, 9),
)
def test_padding_is_right_and_masked_and_prompts_have_a_mask_of_two(
    ids: list[list[int]], pad: int, least: int, prompt: int
) -> None:
    feed = pad_batch(ids, pad, least, prompt)
    width = max(least, *map(len, ids))
    assert {array.shape for array in feed.values()} == {(len(ids), width)}
    assert {array.dtype for array in feed.values()} == {np.dtype(np.int64)}
    for row, got, mask in zip(ids, feed["input_ids"], feed["attention_mask"], strict=True):
        left_out, padding = min(prompt, len(row)), width - len(row)
        assert got.tolist() == row + [pad] * padding
        assert mask.tolist() == [2] * left_out + [1] * (len(row) - left_out) + [0] * padding


def test_longest_texts_come_first() -> None:
    groups = plan_batches([3, 100, 7], 100)
    assert [group.tolist() for group in groups] == [[1], [2, 0]]


def test_small_gpu_call_is_one_batch() -> None:
    groups, workers = Schedule.on_gpu().plan([100] * 100)
    assert (len(groups), workers) == (1, 1)
    groups, workers = Schedule.on_gpu().plan([100] * 1000)
    assert (len(groups), workers) == (8, GPU_WORKERS)
