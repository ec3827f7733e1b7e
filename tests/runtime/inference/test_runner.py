"""Test that a graph that gives another number of vectors than texts is refused."""

import numpy as np
import pytest

from whiten_runtime.errors import BundleError
from whiten_runtime.inference.runner import Feed, ForkSafeSession, run_in_pool, run_session

FEED: Feed = {name: np.ones((2, 3), np.int64) for name in ("input_ids", "attention_mask")}


def session_of(numbers: tuple[int, ...]) -> ForkSafeSession:
    """A session whose outputs have these numbers of rows, whatever the feed."""

    class Session:
        def run(self, outputs: list[str], feed: Feed) -> list[np.ndarray]:
            return [np.zeros((rows, 4), np.float32) for rows in numbers]

        def run_async(self, outputs: list[str], feed: Feed, end: object, kept: object) -> None:
            end(self.run(outputs, feed), kept, "")  # type: ignore[operator]

    return ForkSafeSession(Session)


@pytest.mark.parametrize("run", [run_session, run_in_pool])
def test_one_vector_a_text(run: object) -> None:
    assert run(session_of((2,)), FEED, ("a",)).shape == (2, 4)  # type: ignore[operator]
    assert run(session_of((2, 2)), FEED, ("a", "b")).shape == (2, 8)  # type: ignore[operator]


@pytest.mark.parametrize("run", [run_session, run_in_pool])
@pytest.mark.parametrize("rows", [(1,), (32,), (2, 1), (0,)])
def test_other_numbers_of_vectors_are_refused(run: object, rows: tuple[int, ...]) -> None:
    values = ("a", "b")[: len(rows)]
    with pytest.raises(BundleError, match=r"the graph gives .* for 2 texts.*export the model again"):
        run(session_of(rows), FEED, values)  # type: ignore[operator]
