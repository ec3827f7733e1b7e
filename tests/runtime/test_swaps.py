"""A bundle that is replaced while it is opened: the old one whole, the new one whole, or an error, never a mixture."""

import shutil
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.swaps import make_pair, overwrite, overwrite_at_one_time, remove, rename, swapping
from whiten import Coder, DriftMonitor, Encoder, VectorWhitener, WhitenError

every_swap = pytest.mark.parametrize(
    "swap",
    [rename, overwrite_at_one_time, *(pytest.param(swap, marks=pytest.mark.slow) for swap in (remove, overwrite))],
    ids=lambda swap: swap.__name__,
)
SLOW_OPTIONS = ({"verify_hashes": False}, {"verify": True})
TEXTS = ["the one and the other", "A man is playing a guitar."]
VECTORS = np.random.default_rng(1).normal(size=(64, 32)).astype(np.float32)
ROWS = np.random.default_rng(0).normal(size=(2, 12)).astype(np.float32)


def encoded(encoder: Encoder) -> list[Any]:
    """Return vectors of both sessions, the space and the ranges."""
    return [encoder.space, encoder.encode(TEXTS), encoder.encode(TEXTS * 300)[-2:], encoder.ranges()]


def transformed(whitener: VectorWhitener) -> list[Any]:
    return [whitener.space, whitener.transform(ROWS), whitener.ranges()]


KINDS: dict[str, tuple[str, Any, Callable[[Any], list[Any]]]] = {
    "Encoder": ("bundle-v1", Encoder, encoded),
    "VectorWhitener": ("bundle-v1-vectors", VectorWhitener, transformed),
}


@pytest.fixture(scope="module")
def pairs(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Two bundles by the name of the first, whose files have the same names and sizes."""
    folder = tmp_path_factory.mktemp("pairs")
    return {name: make_pair(golden / name, folder / name) for name, *_ in KINDS.values()}


def same(got: list[Any], want: list[Any]) -> bool:
    return got[0] == want[0] and all(np.allclose(a, b, atol=1e-5) for a, b in zip(got[1:], want[1:], strict=True))


def check_all_swaps(
    pair: tuple[Path, Path], swap: Callable[[Path, Path], None], folder: Path, open_it: Callable[[Path], list[Any]]
) -> None:
    """Replace the first bundle by the second before each step of a function, and check what it returns."""
    old, new = pair
    expected = {"old": open_it(old), "new": open_it(new)}
    assert not same(*expected.values())
    ends = []
    for number in count(1):
        place = folder / str(number) / "bundle"
        shutil.copytree(old, place)
        if swap is not rename:  # whose files are other ones, whatever their times are
            time.sleep(0.02)  # the times of files are counted in steps of up to 10 ms
        with swapping(place, number, partial(swap, place, new)) as steps:
            try:
                results = open_it(place)
            except WhitenError as error:
                assert "\n" not in str(error)
                ends.append("error")
            else:
                ages = [age for age, want in expected.items() if same(results, want)]
                ends.append(ages[0] if ages else "a mixture")
        shutil.rmtree(folder / str(number))
        if not steps.done:  # it was opened in fewer steps
            break
    assert set(ends) == {"old", "new", "error"}
    assert len(ends) > 20


@every_swap
@pytest.mark.parametrize("options", [{}, *(pytest.param(options, marks=pytest.mark.slow) for options in SLOW_OPTIONS)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_is_replaced_between_two_steps(
    kind: str,
    options: dict[str, bool],
    swap: Callable[[Path, Path], None],
    pairs: dict[str, tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    name, opener, results_of = KINDS[kind]

    def open_it(path: Path) -> list[Any]:
        with opener(path, threads=3, **options) as opened:
            return results_of(opened)

    check_all_swaps(pairs[name], swap, tmp_path, open_it)


def coded(path: Path) -> list[Any]:
    coder = Coder.of(path)
    return [coder.space, coder.decode(coder.encode(VECTORS))]


def drifted(path: Path) -> list[Any]:
    monitor = DriftMonitor(path)
    monitor.update(VECTORS)
    return [monitor.manifest.space, monitor.report().mean_shift]


@every_swap
@pytest.mark.parametrize("open_it", [coded, drifted])
def test_a_map_is_that_of_the_manifest(
    open_it: Callable[[Path], list[Any]],
    swap: Callable[[Path, Path], None],
    pairs: dict[str, tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    check_all_swaps(pairs["bundle-v1"], swap, tmp_path, open_it)
