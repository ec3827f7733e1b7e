"""Hold the bounds of connections."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Guards:
    """Holds the bounds of connections.

    Attributes:
        connections: connections that may be open.
        header_bytes: bytes of a request's line and headers.
        header_seconds: time in which they must arrive, from the first byte.
        idle_seconds: time in which a new connection must begin to send.
        stall_seconds: time in which some of a body must arrive, or some of an answer be taken.
        draining: whether each connection is closed after its answer.
        refused: function that is called with the status and code of each answer without the application.
    """

    connections: int
    header_bytes: int
    header_seconds: float
    idle_seconds: float
    stall_seconds: float
    draining: bool = False
    refused: Callable[[int, str], object] = lambda status, code: None
