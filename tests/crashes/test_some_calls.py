"""Kill and fail a few commands at some of the calls that change files; test_every_call.py tries all of them."""

import os

import pytest

from crashes.running import tried

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
@pytest.mark.parametrize(("name", "stride"), [("embed --out v.npy, over another", 19), ("eval's figures", 2)])
def test_nothing_is_half_written(name: str, stride: int) -> None:
    (tally,) = tried(name, "--stride", str(stride))
    assert tally["problems"] == []
    assert tally["kills"]
    assert tally["reported"]
