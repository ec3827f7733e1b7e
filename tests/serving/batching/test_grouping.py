"""Test how waiting texts are grouped into batches."""

import hypothesis.strategies as st
from hypothesis import given

from whiten_runtime.inference.batching import plan_batches
from whiten_serving.batching.grouping import grouped

BUDGET = 256
FIXED = 16


def cost(lengths: list[int], groups: list[list[int]]) -> int:
    return sum(FIXED + len(group) * max(lengths[index] for index in group) for group in groups)


@given(st.lists(st.integers(1, 300), max_size=60))
def test_every_text_is_in_one_batch_within_the_budget(lengths: list[int]) -> None:
    groups = grouped(lengths, BUDGET)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[index] for index in group) <= BUDGET


@given(st.lists(st.integers(4, 40), min_size=1, max_size=60))
def test_it_costs_little_more_than_full_batches_at_most(lengths: list[int]) -> None:
    """Batches end where lengths change, so equal lengths may need one batch more."""
    full = [group.tolist() for group in plan_batches(lengths, BUDGET)]
    assert cost(lengths, grouped(lengths, BUDGET)) <= cost(lengths, full) + FIXED


def test_a_few_dozen_texts_are_padded_less_than_in_full_batches() -> None:
    lengths = [5 + index * index // 50 for index in range(40)]
    full = [group.tolist() for group in plan_batches(lengths, BUDGET)]
    assert cost(lengths, grouped(lengths, BUDGET)) < 0.93 * cost(lengths, full)


def test_the_longest_come_first_and_equal_ones_in_order() -> None:
    assert grouped([3, 90, 3, 90], BUDGET) == [[1, 3], [0, 2]]


def test_a_larger_budget_pads_more_for_fewer_batches() -> None:
    lengths = list(range(1, 65))
    assert len(grouped(lengths, 16_384)) < len(grouped(lengths, BUDGET))


def test_nothing() -> None:
    assert grouped([], BUDGET) == []
