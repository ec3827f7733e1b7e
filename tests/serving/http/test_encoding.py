"""Vectors as JSON."""

import asyncio
import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whiten_serving.http import encoding
from whiten_serving.http.encoding import base64_of, json_of, rows_of


@given(st.integers(0, 40), st.sampled_from([1, 3, 384]), st.sampled_from([np.float32, np.int8, np.uint8]))
def test_rows_are_the_vectors_exactly(count: int, width: int, dtype: Any) -> None:
    vectors = (np.random.default_rng(count).standard_normal((count, width)) * 50).astype(dtype)
    found = json.loads(b"".join(asyncio.run(rows_of(vectors))))
    np.testing.assert_array_equal(np.array(found, dtype).reshape(count, width), vectors)


@pytest.mark.parametrize("count", [0, 1, 85, 86, 171, 500])
def test_parts_are_joined(count: int) -> None:
    vectors = np.arange(count * 384, dtype=np.float32).reshape(count, 384)
    parts = asyncio.run(rows_of(vectors, lambda index, row: {"i": index, "v": row}))
    found = json.loads(b"".join(parts))
    assert [one["i"] for one in found] == list(range(count))
    assert count <= 85 or len(parts) > 2
    assert all(one["v"][0] == one["i"] * 384 for one in found)


def test_others_have_their_turn_between_parts() -> None:
    turns: list[int] = []

    async def other() -> None:
        for turn in range(100):
            turns.append(turn)
            await asyncio.sleep(0)

    async def run() -> None:
        task = asyncio.create_task(other())
        await asyncio.sleep(0)
        before = len(turns)
        await rows_of(np.zeros((encoding._AT_ONCE // 384 * 5, 384), np.float32))
        assert len(turns) - before >= 4
        task.cancel()

    asyncio.run(run())


def test_base64_of_a_row() -> None:
    row = np.array([1.5, -2.0], np.float32)
    assert base64.b64decode(base64_of(row)) == row.astype("<f4").tobytes()


def test_float32_is_written_with_the_digits_that_it_needs() -> None:
    assert json_of(np.array([0.1, 1e-30], np.float32)) == b"[0.1,1e-30]"
