"""The head of an answer goes out with the beginning of its body."""

from types import SimpleNamespace
from typing import Any

import pytest

from whiten_serving.server.protocol import _Transport


class Line:
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ended = False
        self.transport: Any = self

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def end(self) -> None:
        self.ended = True


def opened(method: str = "GET") -> tuple[Line, Any, _Transport]:
    line, cycle = Line(), SimpleNamespace(scope={"method": method}, response_started=False)
    return line, cycle, _Transport(line, cycle)  # type: ignore[arg-type]


def test_head_and_body_are_one_write() -> None:
    line, cycle, transport = opened()
    cycle.response_started = True
    transport.write(b"head ")
    assert not line.written
    transport.write(b"body")
    transport.write(b" and more")
    assert line.written == [b"head body", b" and more"]


def test_a_word_before_the_answer_goes_out_at_once() -> None:
    line, cycle, transport = opened()
    transport.write(b"continue")
    assert line.written == [b"continue"]
    cycle.response_started = True
    transport.write(b"head ")
    transport.write(b"body")
    assert line.written == [b"continue", b"head body"]


def test_an_answer_without_a_body_goes_out_at_once() -> None:
    line, cycle, transport = opened("HEAD")
    cycle.response_started = True
    transport.write(b"head")
    assert line.written == [b"head"]


@pytest.mark.parametrize("bodies", [0, 1])
def test_nothing_is_lost_at_the_end(bodies: int) -> None:
    line, cycle, transport = opened()
    cycle.response_started = True
    transport.write(b"head")
    for _ in range(bodies):
        transport.write(b"")
    transport.close()
    assert b"".join(line.written) == b"head"
    assert line.ended
