"""Give outcomes to callers, whose functions may fail."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from whiten_serving.batching.request import Deliver, Request

Given = TypeVar("Given")

_log = logging.getLogger("whiten_serving")


def deliver(requests: Sequence[Request]) -> None:
    """Give outcomes to their callers, those with the same function together."""
    together: dict[Deliver, list[Request]] = {}
    for request in requests:
        together.setdefault(request.deliver, []).append(request)
    for function, ended in together.items():
        call(function, ended)


def call(function: Callable[[Given], object], given: Given) -> None:
    """Call a caller's function in a lane; log what it raises, which must not end the lane."""
    try:
        function(given)
    except BaseException:
        _log.exception("a function that was called with what a lane computed raised; the lane goes on")
