"""Test that scales and weights of int8 do not depend on the kernels that numpy's OpenBLAS takes, nor on its threads."""

import os
from pathlib import Path

import pytest

from support.cli import python

CHOICE = """
import hashlib
import sys
from pathlib import Path
import numpy as np
from whiten_export.graph.int8.rounding import quantize_with_feedback
from whiten_export.graph.int8.measure import _Meter
from whiten_export.graph.int8.scales import choose_scales
generator = np.random.default_rng(0)
meter = _Meter(Path(sys.argv[1]))
for _ in range(3):
    rows = np.cumsum(generator.normal(size=(300, 256)), axis=1, dtype=np.float32)  # correlated, and ever larger
    meter.add(rows, rows, 1)
meter.add_far(rows, np.array([300]))
measured, weight = meter.result(), generator.normal(size=(256, 512)).astype(np.float32)
choice = choose_scales(measured, [weight], None)
token = choice.token
columns, scales = quantize_with_feedback(token.smoothed_weight(weight), token.smoothed_gram(measured.gram))
for array in (measured.gram, columns, scales, choice.costs, token.factors, choice.constant.factors):
    print(None if array is None else hashlib.sha256(array.tobytes()).hexdigest())
"""


def chosen(core: str | None, threads: int, folder: Path) -> str:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": str(threads)}
    environment |= {} if core is None else {"OPENBLAS_CORETYPE": core}
    done = python(CHOICE, folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is chosen with this processor's kernels and one thread."""
    return chosen(None, 1, tmp_path_factory.mktemp("kernels") / "b")


@pytest.mark.parametrize(("core", "threads"), [(None, 2), ("Haswell", 1), ("Haswell", 2), ("Prescott", 1)])
def test_scales_and_weights_are_the_same_with_all_kernels(
    core: str | None, threads: int, wanted: str, tmp_path: Path
) -> None:
    assert chosen(core, threads, tmp_path / "a") == wanted
