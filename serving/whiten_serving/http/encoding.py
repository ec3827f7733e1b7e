"""Write vectors into answers."""

import asyncio
import sys
from binascii import b2a_base64
from collections.abc import Callable
from typing import Any

import orjson
from numpy.typing import NDArray

_AT_ONCE = 32_768
"""Numbers that are written before other requests have their turn: about a millisecond."""

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def json_of(value: object) -> bytes:
    """Return a value as JSON; arrays of numpy are lists."""
    found: bytes = orjson.dumps(value, option=_OPTIONS)
    return found


def base64_of(row: NDArray[Any]) -> str:
    """Return the bytes of a vector, little-endian, in base64."""
    if sys.byteorder == "big":
        row = row.astype(row.dtype.newbyteorder("<"))
    return b2a_base64(row.tobytes(), newline=False).decode("ascii")


async def rows_of(vectors: NDArray[Any], item: Callable[[int, NDArray[Any]], object] | None = None) -> list[bytes]:
    """Return vectors as a JSON list, in parts; other requests have their turn between parts.

    Args:
        vectors: shape [n, k].
        item: function that makes an item of the list of (index, vector); None for the vectors themselves.
    """
    count = max(_AT_ONCE // max(vectors.shape[1], 1), 1)
    parts: list[bytes] = []
    for start in range(0, len(vectors), count):
        if parts:
            await asyncio.sleep(0)
        some = vectors[start : start + count]
        items = some if item is None else [item(start + place, row) for place, row in enumerate(some)]
        parts.append(b"," + json_of(items)[1:-1])
    if not parts:
        return [b"[]"]
    parts[0] = b"[" + parts[0][1:]
    return [*parts, b"]"]
