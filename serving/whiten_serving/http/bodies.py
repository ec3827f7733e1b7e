"""Bound the memory of all bodies together."""

from dataclasses import dataclass

from whiten_serving.http.call import Call
from whiten_serving.http.errors import ApiError

FREE = 16_384
"""Bytes of a body that are always read, so that small requests go on while large ones fill the room."""


@dataclass
class Bodies:
    """Counts the bytes of bodies that are being read, or whose requests are not answered yet.

    Attributes:
        bytes: their number now.
        refused: number of requests that were refused because there was no room.
    """

    bytes: int = 0
    refused: int = 0

    def check(self, declared: int, most: int) -> None:
        """Check that there is room for a body, before any of it is read.

        Args:
            declared: its number of bytes, by its headers.
            most: number of bytes of all bodies together at most.

        Raises:
            ApiError: there is none now.
        """
        if declared > FREE and self.bytes + declared > most:
            self.refused += 1
            message = f"{self.bytes} bytes of other requests wait, and {most} may; send smaller requests, or try again"
            raise ApiError("bodies_full", message)

    def add(self, call: Call, size: int, most: int) -> None:
        """Count bytes that arrived for a request.

        Raises:
            ApiError: there is no room for them now.
        """
        if call.body_bytes + size > FREE:
            self.check(FREE + size, most + FREE)
        call.body_bytes += size
        self.bytes += size

    def release(self, call: Call) -> None:
        """Count a request's bytes no more; it is answered."""
        self.bytes -= call.body_bytes
        call.body_bytes = 0
