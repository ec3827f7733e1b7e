"""A bundle that is replaced while it is opened: the old one whole, the new one whole, or an error, never a mixture."""

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.swaps import SWAPS, make_other, swapping
from whiten import Encoder, VectorWhitener, WhitenError

TEXTS = ["the one and the other", "A man is playing a guitar."]
ROWS = np.random.default_rng(0).normal(size=(2, 12)).astype(np.float32)


def encoded(encoder: Encoder) -> list[np.ndarray]:
    return [encoder.encode(TEXTS), encoder.encode(TEXTS * 300)[-2:]]  # in both sessions


def transformed(whitener: VectorWhitener) -> list[np.ndarray]:
    return [whitener.transform(ROWS)]


KINDS: dict[str, tuple[str, Any, Callable[[Any], list[np.ndarray]]]] = {
    "Encoder": ("bundle-v1", Encoder, encoded),
    "VectorWhitener": ("bundle-v1-vectors", VectorWhitener, transformed),
}


@pytest.fixture(scope="module")
def others(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("others")
    return {name: make_other(Path(shutil.copytree(golden / name, folder / name))) for name, *_ in KINDS.values()}


def same(got: list[Any], want: list[Any]) -> bool:
    return got[0] == want[0] and all(np.allclose(a, b, atol=1e-5) for a, b in zip(got[1:], want[1:], strict=True))


@pytest.mark.parametrize("swap", SWAPS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("options", [{}, {"verify_hashes": False}, {"verify": True}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_is_replaced_between_two_steps(
    kind: str,
    options: dict[str, bool],
    swap: Callable[..., None],
    golden: Path,
    others: dict[str, Path],
    tmp_path: Path,
) -> None:
    name, opener, vectors_of = KINDS[kind]
    wanted = []
    for path in (golden / name, others[name]):
        with opener(path, threads=3) as opened:
            wanted.append([opened.space, *vectors_of(opened), opened.ranges()])
    assert not same(*wanted)
    ends, bad = {"old": 0, "new": 0, "error": 0}, {}
    for number in count(1):
        place = tmp_path / str(number) / "bundle"
        shutil.copytree(golden / name, place)
        with swapping(place, number, lambda place=place: swap(place, others[name])) as steps:
            try:
                opened = opener(place, threads=3, **options)
                vectors = vectors_of(opened)
            except WhitenError as error:
                assert "\n" not in str(error)
                ends["error"] += 1
            else:
                with opened:
                    try:
                        got = [opened.space, *vectors, opened.ranges()]
                    except WhitenError as error:
                        bad[number] = f"no ranges: {error}"
                        got = [opened.space, *vectors]
                found = [same(got, want[: len(got)]) for want in wanted]
                if any(found):
                    ends[("old", "new")[found.index(True)]] += 1
                else:
                    bad[number] = "a mixture of both"
        shutil.rmtree(place.parent)
        if not steps.done:
            break
    print(kind, options, swap.__name__, ends, bad)
    assert not bad
    assert ends["old"] and number > 10
