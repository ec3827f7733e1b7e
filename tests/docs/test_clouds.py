"""The figures of real vectors show what the model and the whitening give: drawn again, their numbers are the same."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
WORDS = re.compile(r">([^<>]+)<")


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    sys.path.insert(0, str(ROOT / "tools" / "site"))
    try:
        import pictures

        return pictures.clouds()
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("name", ["cloud.svg", "cosines.svg", "spectrum.svg"])
def test_the_numbers_are_the_same(name: str, drawn: dict[str, str]) -> None:
    """Within a pixel: the last bits of onnxruntime's vectors differ between processors."""
    committed = (ROOT / "docs" / "images" / name).read_text("utf-8")
    assert NUMBER.sub("0", drawn[name]) == NUMBER.sub("0", committed)
    here, there = ([float(one) for one in NUMBER.findall(text)] for text in (drawn[name], committed))
    np.testing.assert_allclose(here, there, rtol=0, atol=1)
    here, there = (numbers_in_words(text) for text in (drawn[name], committed))
    np.testing.assert_allclose(here, there, rtol=0, atol=0.0101)


def numbers_in_words(text: str) -> list[float]:
    """Return the numbers that a figure states, such as cosines, rather than those of its coordinates."""
    words = " ".join(WORDS.findall(text)).replace("\N{MINUS SIGN}", "-")
    return [float(one) for one in NUMBER.findall(words)]
