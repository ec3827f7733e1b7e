"""Messages name the argument that was given."""

import numpy as np
import pytest

from whiten import Coder, UsageError, Whitening


def test_an_unknown_method() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4))
    with pytest.raises(UsageError, match="method is 'pcaa'; wanted pca, zca, cholesky"):
        Whitening(method="pcaa").fit(rows)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("size", [None, 3])
def test_a_coder_of_vectors_of_one_direction(value: float, size: int | None) -> None:
    with pytest.raises(UsageError, match="all vectors have the same direction, so there are no axes"):
        Coder.fit(np.full((500, 8), value, np.float32), bytes=size)
