"""Test that decompositions do not depend on the number of BLAS threads."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from whiten_whitening.moments import eigh, svd


@pytest.mark.parametrize("decompose", [eigh, svd])
def test_bits_do_not_depend_on_the_number_of_threads(decompose) -> None:  # type: ignore[no-untyped-def]
    matrix = np.cov(np.random.default_rng(0).normal(size=(500, 200)).T)
    found = []
    for threads in (1, 2, 4):
        with threadpool_limits(threads, "blas"):
            found.append([part.tobytes() for part in decompose(matrix)])
    assert found[0] == found[1] == found[2]
