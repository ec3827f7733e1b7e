"""Test how often the state of long work is saved."""

import pytest

from whiten_runtime.files import pace
from whiten_runtime.files.pace import SHARE, Pace


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    return made


def test_work_is_saved_after_a_second(clock: Clock) -> None:
    found = Pace()
    assert not found.is_due()
    clock.now += 1
    assert found.is_due()
    with found.saving():
        clock.now += 0.01
    assert not found.is_due()
    clock.now += 1
    assert found.is_due()


def test_slow_saves_take_no_more_than_their_share(clock: Clock) -> None:
    found, saving, start = Pace(), 0.0, clock.now
    for _ in range(1000):
        clock.now += 0.3
        if found.is_due():
            with found.saving():
                clock.now += 2
                saving += 2
    assert 4 < saving - 2 <= SHARE * (clock.now - start)  # the first save comes after a second
