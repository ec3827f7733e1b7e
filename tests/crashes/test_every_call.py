"""Kill and fail every command at every call that changes a file: nothing is ever half-written or lost."""

import os

import pytest

from crashes.running import tried
from crashes.scenarios import SCENARIOS

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_every_call(name: str) -> None:
    skip_without(SCENARIOS[name].needs)
    (tally,) = tried(name, "--kills-only")
    assert tally["problems"] == []
    assert tally["kills"] == (SCENARIOS[name].samples or tally["calls"]) > 3
    assert tally["calls"] >= tally["kills"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_fifth_call_fails(name: str) -> None:
    skip_without(SCENARIOS[name].needs)
    (tally,) = tried(name, "--errors-only", "--stride", "5")
    assert tally["problems"] == []
    assert tally["reported"] > 0


def skip_without(module: str) -> None:
    """Skip a test whose scenario needs a module that is not installed."""
    if module:
        pytest.importorskip(module)
