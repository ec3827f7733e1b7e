"""Read the bodies of requests, and refuse those that are too large, too slow or encoded before they cost memory."""

import asyncio

from whiten_serving.http.bodies import Bodies
from whiten_serving.http.call import Call
from whiten_serving.http.eager import Begun
from whiten_serving.http.errors import ApiError, ClientGoneError


def check_declared(headers: dict[bytes, bytes], most: int) -> int:
    """Return the number of bytes of a body that its headers say, 0 if they do not, before any of it is read.

    Raises:
        ApiError: it is compressed, or larger than `most` bytes.
    """
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"identity", b""):
        shown = encoding[:40].decode("latin-1")
        raise ApiError("unsupported_encoding", f"the body's content-encoding is {shown!r}; send it uncompressed")
    declared = headers.get(b"content-length")
    if declared is None:
        return 0
    if not declared.isdigit():
        raise ApiError("invalid_header", "content-length is not a whole number; send the number of bytes of the body")
    if len(declared) > 18 or int(declared) > most:
        shown = declared[:20].decode("ascii")
        raise ApiError("body_too_large", f"the body holds {shown} bytes, and {most} may; send fewer texts at once")
    return int(declared)


async def read_body(call: Call, bodies: Bodies, most: int, most_together: int, seconds: float) -> bytes | bytearray:
    """Return the body of a request whose headers were checked by `check_declared`.

    Args:
        call: the request.
        bodies: count of the bytes of all bodies.
        most: number of bytes of the body at most.
        most_together: number of bytes of all bodies together at most.
        seconds: time until it must be there.

    Raises:
        ApiError: it is larger than `most` bytes, there is no room for it, or it is not there after so many seconds.
        ClientGoneError: the caller went before it was complete.
    """
    reading = Begun(_read(call, bodies, most, most_together))
    if reading.done:
        return reading.result
    try:
        async with asyncio.timeout(seconds):
            return await reading
    except TimeoutError:
        message = f"the body was not complete after {seconds:g} s; send it faster, or fewer texts at once"
        raise ApiError("body_timeout", message) from None


async def _read(call: Call, bodies: Bodies, most: int, most_together: int) -> bytes | bytearray:
    body: bytes | bytearray = b""
    more = True
    while more:
        message = await call.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) + len(part) > most:
            raise ApiError("body_too_large", f"the body holds more than {most} bytes; send fewer texts at once")
        bodies.add(call, len(part), most_together)
        if not body:
            body = part
        elif part:
            body = body if isinstance(body, bytearray) else bytearray(body)
            body += part
    return body
