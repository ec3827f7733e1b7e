"""Test the batches of a call, and on a GPU those that are too large, padding, and outputs of other sizes."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from whiten_runtime.errors import BundleError, ProviderError, WhitenError
from whiten_runtime.inference.batching import (
    GPU_WORKERS,
    TOKEN_BUDGET,
    Schedule,
    pad_batch,
    plan_batches,
    token_budget,
    workers_for,
)
from whiten_runtime.inference.engine import Engine, Feed, ForkSafeSession
from whiten_runtime.inference.gpu import check_padding, run_in_parts

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


def test_small_gpu_call_is_one_batch() -> None:
    groups, workers = Schedule.on_gpu().plan([100] * 100)
    assert (len(groups), workers) == (1, 1)
    groups, workers = Schedule.on_gpu().plan([100] * 1000)
    assert (len(groups), workers) == (8, GPU_WORKERS)


MEMORY = (
    "onnxruntime failed: [ONNXRuntimeError] : 1 : FAIL : running Attention node. Available memory of 0 is smaller than"
)


def sums(feed: Feed) -> NDArray[np.float32]:
    """Return a unit vector that depends on a text's tokens and not on its padding."""
    total = (feed["input_ids"] * feed["attention_mask"]).sum(axis=1)
    return np.stack([np.cos(total), np.sin(total)], axis=1).astype(np.float32)


class Small:
    """A GPU that takes batches of up to so many padded tokens."""

    def __init__(self, most: int) -> None:
        self.most, self.shapes = most, list[tuple[int, ...]]()

    def __call__(self, feed: Feed) -> list[NDArray[np.float32]]:
        self.shapes.append(feed["input_ids"].shape)
        if feed["input_ids"].size > self.most:
            raise WhitenError(f"{MEMORY} requested bytes of 478150656")
        return [sums(feed)]


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=9), min_size=1, max_size=20), st.integers(9, 60))
def test_batches_that_are_too_large_run_in_halves(ids: list[list[int]], most: int) -> None:
    feed, gpu = pad_batch(sorted(ids, key=len, reverse=True), 0), Small(most)
    (vectors,) = run_in_parts(gpu, feed)
    np.testing.assert_array_equal(vectors, sums(feed))
    assert sum(rows for rows, width in gpu.shapes if rows * width <= most) == len(ids)


def test_one_text_that_is_too_long_is_an_error_that_says_so() -> None:
    with pytest.raises(WhitenError, match="30 tokens"):
        run_in_parts(Small(20), pad_batch([[1] * 30, [2]], 0))


def test_other_errors_are_passed_on_at_once() -> None:
    calls = []

    def fail(feed: Feed) -> list[NDArray[np.float32]]:
        calls.append(len(feed["input_ids"]))
        raise WhitenError("onnxruntime failed: CUDA failure 700: an illegal memory access was encountered")

    with pytest.raises(WhitenError, match="illegal memory access"):
        run_in_parts(fail, pad_batch([[1], [2]], 0))
    assert calls == [2]


class GivenEngine(Engine):
    """Runs a function of a feed in place of a graph."""

    def __init__(self, run: Callable[[Feed], NDArray[np.float32]]) -> None:
        self._given, self._pad_token_id, self.providers = run, 0, ["CUDAExecutionProvider"]

    def _run(self, feed: Feed, outputs: Sequence[str], side_by_side: bool) -> list[NDArray[np.float32]]:
        return [self._given(feed)]


@pytest.mark.parametrize("wrong_from", [9, 127, 129, 512])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_kernel_that_misreads_padding_from_some_width_on_is_refused(wrong_from: int, precision: str) -> None:
    def run(feed: Feed) -> NDArray[np.float32]:
        padded, width = (feed["attention_mask"] == 0).any(axis=1, keepdims=True), feed["input_ids"].shape[1]
        return sums(feed) + np.float32(0.1) * (padded & (width >= wrong_from))

    check_padding(GivenEngine(sums), 512, precision)  # type: ignore[arg-type]
    with pytest.raises(ProviderError, match=f"padded to {wrong_from} tokens"):
        check_padding(GivenEngine(run), 512, precision)  # type: ignore[arg-type]
    check_padding(GivenEngine(run), wrong_from - 1, precision)  # type: ignore[arg-type]
    with pytest.raises(ProviderError, match="nan"):
        check_padding(GivenEngine(lambda feed: run(feed) * np.nan), 9, precision)  # type: ignore[arg-type]


FEED: Feed = {name: np.ones((2, 3), np.int64) for name in ("input_ids", "attention_mask")}


def session_of(numbers: tuple[int, ...]) -> ForkSafeSession:
    """A session whose outputs have these numbers of rows, whatever the feed."""

    class Session:
        def run(self, outputs: list[str], feed: Feed, options: None = None) -> list[np.ndarray]:
            return [np.zeros((rows, 4), np.float32) for rows in numbers]

        def run_async(self, outputs: list[str], feed: Feed, end: object, kept: object, options: None) -> None:
            end(self.run(outputs, feed), kept, "")  # type: ignore[operator]

    return ForkSafeSession(Session)


class SessionEngine(Engine):
    """Runs a session whose outputs have these numbers of rows."""

    def __init__(self, rows: tuple[int, ...]) -> None:
        self._session = session_of(rows)

    def _run(self, feed: Feed, outputs: Sequence[str], side_by_side: bool) -> list[NDArray[np.float32]]:
        return self._session.run_in_pool(outputs, feed) if side_by_side else self._session.run(outputs, feed)


@pytest.mark.parametrize("side_by_side", [False, True])
def test_one_vector_a_text(side_by_side: bool) -> None:
    assert SessionEngine((2,)).run_feed(FEED, ("a",), side_by_side).shape == (2, 4)
    assert SessionEngine((2, 2)).run_feed(FEED, ("a", "b"), side_by_side).shape == (2, 8)


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("rows", [(1,), (32,), (2, 1), (0,)])
def test_other_numbers_of_vectors_are_refused(side_by_side: bool, rows: tuple[int, ...]) -> None:
    values = ("a", "b")[: len(rows)]
    with pytest.raises(BundleError, match=r"the graph gives .* for 2 texts.*export the model again"):
        SessionEngine(rows).run_feed(FEED, values, side_by_side)
