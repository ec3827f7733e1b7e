"""Exchanges of bytes that any HTTP server in front of the application must get right, by `whiten serve` as it is."""

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from support.server import RunningServer

BODY = b'{"input":"a"}'
POST = b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"\r\n5\r\n%b\r\n%x;x=y\r\n%b\r\n0\r\nx-trailer: a\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])
SIZED = LENGTH + b"\r\n" + BODY
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
EXPECT = b"expect: 100-continue\r\n"
LAST = b"GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
LARGE = bytes(8_000_000)


@pytest.fixture(scope="module")
def address(golden: Path) -> Iterator[tuple[str, int]]:
    with RunningServer(golden / "bundle-v1", "--no-verify", "--max-body", "1MB", "--log", "off") as server:
        yield server.address


def exchange(address: tuple[str, int], *parts: bytes) -> tuple[list[int], bytes]:
    """Return the statuses, and all bytes, that a server answers to parts until it closes the connection."""
    answers = b""
    with socket.create_connection(address, 60) as sock, suppress(ConnectionError):
        for part in parts:
            sock.sendall(part)
        answers = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    return [int(answer[:3]) for answer in answers.split(b"HTTP/1.1 ")[1:]], answers


@pytest.mark.parametrize(
    "parts",
    [
        [POST + SIZED],
        [POST + LENGTH + b"\r\n", BODY[:3], BODY[3:]],
        [POST + CHUNKED + CHUNKS],
        [POST + H2C + SIZED],
        [POST + H2C.lower() + LENGTH + b"\r\n", BODY],
        [POST + H2C + CHUNKED + CHUNKS],
        [POST + H2C + EXPECT + LENGTH + b"\r\n", BODY],
        [POST + EXPECT + LENGTH + b"\r\n", BODY],
        [POST + b"x-long: %b\r\n" % (b"x" * 30_000) + SIZED],
        [(POST + SIZED) * 20],
    ],
)
def test_requests_are_answered_and_the_connection_goes_on(address: tuple[str, int], parts: Sequence[bytes]) -> None:
    count = sum(part.count(POST) for part in parts)
    expects = EXPECT in parts[0]
    statuses, answers = exchange(address, *parts, LAST)
    assert statuses == [100] * expects + [200] * count + [200]
    vectors = [
        json.loads(part.partition(b"\r\n\r\n")[2])["data"] for part in answers.split(b"HTTP/1.1 ")[1 + expects : -1]
    ]
    assert all(vector == vectors[0] for vector in vectors)


@pytest.mark.parametrize(
    "rest",
    [
        LENGTH + CHUNKED + CHUNKS,
        CHUNKED + LENGTH + CHUNKS,
        b"content-length: 3\r\n" + SIZED,
        b"content-length: +13\r\n\r\n" + BODY,
        b"content-length : 13\r\n\r\n" + BODY,
        b"transfer-encoding: chunked, x\r\n" + CHUNKS,
        CHUNKED + b"\r\nzz\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"a: b\0c\r\n" + SIZED,
        b"host: other\r\n" + SIZED,
    ],
)
@pytest.mark.parametrize("offer", [b"", H2C], ids=["plain", "h2c"])
def test_nothing_is_answered_behind_a_length_or_a_head_of_two_readings(
    address: tuple[str, int], rest: bytes, offer: bytes
) -> None:
    """A proxy that reads it in another way would take what comes behind for another client's (request smuggling)."""
    assert exchange(address, POST + offer + rest + LAST)[0] in ([400], [200])


@pytest.mark.parametrize(
    "begin", [b"GET /", POST + b"a: ", POST + CHUNKED + b"\r\n0\r\na: ", POST + CHUNKED + b"\r\n1;"]
)
def test_a_head_without_end_is_cut_off(address: tuple[str, int], begin: bytes) -> None:
    statuses, _ = exchange(address, begin, *[b"a" * 30_000] * 100)
    assert statuses in ([], [400], [431], [413])  # the connection is reset by what was sent and not read


@pytest.mark.parametrize(("path", "status"), [(b"/v1/embeddings", 413), (b"/nothing", 404)])
@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
def test_a_client_that_is_refused_while_it_sends_gets_its_answer(
    address: tuple[str, int], path: bytes, status: int, chunked: bool
) -> None:
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\n" % path
    length = CHUNKED + b"\r\n%x\r\n" if chunked else b"content-length: %d\r\n\r\n"
    parts = length % len(LARGE) + LARGE, b"\r\n0\r\n\r\n" if chunked else b""
    assert exchange(address, head + parts[0], parts[1], LAST)[0] == [status, 200]
    if not chunked or status == 404:  # it is refused before it sends, and ends the connection
        assert exchange(address, head + EXPECT + length % len(LARGE))[0] == [status]
