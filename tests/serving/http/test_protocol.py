"""HTTP/1.1 on a socket: offers of an upgrade, connections that go on, heads without end, and ambiguous lengths."""

import asyncio
import random
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import h11
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from support.asgi import until
from whiten_serving.http import protocol
from whiten_serving.http.protocol import Protocol

POST = b"POST /a HTTP/1.1\r\nhost: test\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
WEBSOCKET = b"connection: keep-alive, upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
THREE = b"content-length: 3\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"
REFUSED = "HTTP/1.1 400"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the method and the body."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    content = scope["method"].encode() + b" " + body
    headers = [(b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


@asynccontextmanager
async def connected(app: Any, seconds: float = 1000) -> AsyncIterator[tuple[StreamReader, StreamWriter, Any]]:
    """Give both ends of a client of an application, and the connections of its server, which may be idle for a time."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=seconds,  # type: ignore[arg-type]
    )
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: Protocol(config, state, {}), "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        yield reader, writer, state.connections
        writer.close()


async def exchange(parts: Sequence[bytes], last: bytes = LAST, app: Any = echo) -> str:
    """Return all that a server answers to bytes that come in parts, until it closes or a last request is answered.

    What comes after the server has closed resets the connection, and answers are lost then (RFC 9112, 9.6): where it
    closes by itself, `last` is empty.
    """
    async with connected(app) as (reader, writer, _):
        received = asyncio.create_task(reader.read())
        try:
            for part in [*parts, last]:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.001)
            answers = await asyncio.wait_for(received, 20)
        except ConnectionError:
            answers = b""
    return answers.decode()


def bodies(answers: str) -> list[str]:
    """Return the bodies of answers, all of status 200, but for that of the last request."""
    found = [answer.partition("\r\n\r\n") for answer in answers.split("HTTP/1.1 ")[1:]]
    assert {head[:3] for head, _, _ in found} <= {"200", "100"}
    *firsts, last = [body for head, _, body in found if head.startswith("200")]
    assert last == "GET "
    return firsts


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET, H2C.lower(), H2C + WEBSOCKET], ids=["h2c", "ws", "lower", "both"])
@pytest.mark.parametrize(
    "parts",
    [
        [THREE + b"abc"],
        [THREE, b"abc"],
        [THREE, b"a", b"bc"],
        [b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"],
        [b"transfer-encoding: chunked\r\n\r\n", b"1\r\na\r\n2;x=y\r\nb", b"c\r\n0\r\nmore: trailer\r\n\r\n"],
        [b"expect: 100-continue\r\n" + THREE, b"abc"],
        [b"expect:100-continue \t\r\n" + THREE, b"abc"],
    ],
    ids=["one packet", "two", "three", "chunked", "chunks", "continue", "blanks"],
)
def test_an_offer_of_an_upgrade_is_ignored(offer: bytes, parts: list[bytes]) -> None:
    answers = asyncio.run(exchange([POST + offer + parts[0], *parts[1:]]))
    assert bodies(answers) == ["POST abc"]
    assert answers.startswith("HTTP/1.1 100 Continue\r\n\r\n") == (b"expect" in parts[0])


def test_an_offer_without_a_body_and_one_that_closes() -> None:
    assert bodies(asyncio.run(exchange([b"GET / HTTP/1.1\r\nhost: test\r\n" + H2C + b"\r\n"]))) == ["GET "]
    for head in (POST + H2C.replace(b"Upgrade,", b"close, Upgrade,", 1), POST.replace(b"1.1", b"1.0") + H2C):
        answers = asyncio.run(exchange([head + THREE + b"abc"], last=b""))
        assert answers.endswith("\r\nconnection: close\r\n\r\nPOST abc")
        assert answers.count("HTTP/1.1 200") == 1


@pytest.mark.parametrize("connection", [b"close", b"Close", b"TE, close", b"close,TE", b"keep-alive, close"])
def test_a_connection_whose_client_wants_its_end_is_closed(connection: bytes) -> None:
    head = POST + b"connection: " + connection + b"\r\nte: trailers\r\n"
    answers = asyncio.run(exchange([head + THREE + b"abc"], last=b""))
    assert answers.endswith("\r\nconnection: close\r\n\r\nPOST abc")


async def names(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the names of the headers, once the body is there."""
    while (await receive()).get("more_body"):
        pass
    content = b",".join(name for name, _ in scope["headers"])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(content))]})
    await send({"type": "http.response.body", "body": content})


@pytest.mark.parametrize("offer", [b"", H2C])
def test_trailers_are_no_headers(offer: bytes) -> None:
    rest = b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-api-key: secret\r\n\r\n"
    answers = asyncio.run(exchange([POST + offer + rest], app=names))
    assert "transfer-encoding" in answers
    assert "x-api-key" not in answers


heads = st.sampled_from([b"", H2C, WEBSOCKET])
requests = st.tuples(heads, st.booleans(), st.binary(max_size=20).map(lambda body: body.hex().encode()))


@settings(max_examples=60, deadline=None)
@given(st.lists(requests, min_size=1, max_size=6), st.integers(0, 2**32), st.integers(1, 8))
def test_pipelined_requests_cut_anywhere(drawn: list[tuple[bytes, bool, bytes]], seed: int, cuts: int) -> None:
    stream = b""
    for head, chunked, body in drawn:
        sized = b"content-length: %d\r\n\r\n%b" % (len(body), body)
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        chunks = b"transfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % chunk
        stream += POST + head + (chunks if chunked else sized)
    places = sorted(random.Random(seed).choices(range(len(stream)), k=cuts))
    parts = [stream[start:end] for start, end in zip([0, *places], [*places, None], strict=True)]
    assert bodies(asyncio.run(exchange(parts))) == [f"POST {body.decode()}" for _, _, body in drawn]


@pytest.mark.parametrize("offer", [b"", H2C], ids=["plain", "h2c"])
@pytest.mark.parametrize(
    "rest",
    [
        b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"content-length: 3\r\n" + THREE + b"abc",
        b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
        b"content-length : 3\r\n\r\nabc",
        b"a: b\r\n folded\r\n" + THREE + b"abc",
    ],
)
def test_lengths_that_can_be_read_in_two_ways_are_400(offer: bytes, rest: bytes) -> None:
    answers = asyncio.run(exchange([POST + offer + rest + LAST], last=b""))
    assert REFUSED in answers
    assert "POST abc" not in answers.partition(REFUSED)[2]
    assert "GET " not in answers


@pytest.mark.parametrize(
    "begin",
    [
        b"POST /",
        POST + b"a: ",
        POST + H2C + b"a: ",
        POST + b"transfer-encoding: chunked\r\n\r\n0\r\ntrailer: ",
        POST + b"transfer-encoding: chunked\r\n\r\n1;",
        POST + THREE + b"abc" + POST + b"a: ",
    ],
    ids=["path", "head", "offer", "trailer", "chunk", "second"],
)
def test_a_head_without_end_is_400(begin: bytes) -> None:
    answers = asyncio.run(exchange([begin, *[b"a" * 30_000] * 12]))  # more than is read at once, besides the limit
    assert answers == "" or REFUSED in answers  # the client may be told by the end of the connection alone
    assert "GET " not in answers


def has_h11_a_request(head: bytes) -> bool:
    """Return whether h11 takes a head; it counts the lines of Host, whatever these hold."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head)
    try:
        return isinstance(connection.next_event(), h11.Request)
    except h11.RemoteProtocolError:
        return False


@pytest.mark.parametrize("offer", [b"", H2C], ids=["plain", "h2c"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize(
    "hosts",
    [
        b"",
        b"Host: a\r\nhost: a\r\n",
        b"Host: a\r\nx: y\r\nHOST:\r\n",
        b"Host:\r\n",
        b"Host: a\r\n",
        b"host:a.example:8080 \r\n",
        b"Host: whiten_1.b-c:\r\n",
        b"Host: [::1]:80\r\n",
        b"Host: [fe80::1%25eth0]\r\n",
        b"Host: %2Frun%2Fwhiten.sock\r\n",
        b"x-host: a\r\n",
    ],
)
def test_a_request_of_http_1_1_has_one_host_as_h11_wants_it(offer: bytes, version: bytes, hosts: bytes) -> None:
    head = b"POST /a HTTP/%b\r\n%b" % (version, hosts)
    answers = asyncio.run(exchange([head + offer + b"connection: close\r\n" + THREE + b"abc"], last=b""))
    assert answers.startswith("HTTP/1.1 200" if has_h11_a_request(head + THREE) else REFUSED)


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize(
    "host",
    [
        b"a b",
        b"a/b",
        b"http://a",
        b"me@a",
        b"a:b",
        b"a:1:2",
        b"::1",
        b"[::1",
        b"[]",
        b"[::1]a",
        b"%zz",
        b"\xc3\xa9",
        b"a?",
    ],
)
def test_an_invalid_host_is_400(version: bytes, host: bytes) -> None:
    head = b"POST /a HTTP/%b\r\nhost: %b\r\n" % (version, host)
    assert asyncio.run(exchange([head + THREE + b"abc"], last=b"")).startswith(REFUSED)


def test_long_heads_and_bodies_are_read() -> None:
    head = b"".join(b"a%d: %b\r\n" % (number, b"b" * 500) for number in range(60))
    parts = [POST + head, head.replace(b"a", b"c") + b"content-length: 300000\r\n\r\n", *[b"x" * 30_000] * 10]
    assert bodies(asyncio.run(exchange(parts))) == ["POST " + "x" * 300_000]


def test_an_answer_is_written_in_one_piece() -> None:
    class Transport(asyncio.Transport):
        def __init__(self) -> None:
            super().__init__()
            self.writes: list[list[bytes]] = []

        def writelines(self, parts: Any) -> None:
            self.writes.append(list(parts))

        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            assert high == 0

        def is_closing(self) -> bool:
            return [] in self.writes

        def pause_reading(self) -> None:
            pass

        def resume_reading(self) -> None:
            pass

        def close(self) -> None:
            self.writes.append([])

    async def main() -> None:
        config = uvicorn.Config(echo, http=Protocol, ws="none", lifespan="off", log_config=None)
        config.load()
        transport, protocol = Transport(), Protocol(config, ServerState(), {})
        protocol.connection_made(transport)
        protocol.data_received(POST + THREE + b"abc" + POST + b"connection: close\r\n" + THREE + b"def")
        while [] not in transport.writes:
            await asyncio.sleep(0)
        written = [b"".join(parts) for parts in transport.writes if parts]
        assert [answer.partition(b"\r\n\r\n")[2] for answer in written] == [b"POST abc", b"POST def"]

    asyncio.run(asyncio.wait_for(main(), 20))


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    """Answer 401 before the body is read."""
    headers = [(b"content-length", b"2"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": b"no"})


@pytest.mark.parametrize("offer", [b"", H2C])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_is_refused_while_it_sends_gets_its_answer(offer: bytes, chunked: bool) -> None:
    body = bytes(20_000_000)
    length = b"transfer-encoding: chunked\r\n\r\n%x\r\n" if chunked else b"content-length: %d\r\n\r\n"
    end = b"\r\n0\r\n\r\n" if chunked else b""
    answers = asyncio.run(exchange([POST + offer + length % len(body) + body, end], last=b"", app=refuse))
    assert (answers[:12], answers.count("HTTP/1.1"), answers[-6:]) == ("HTTP/1.1 401", 1, "\r\n\r\nno")


NINE = b"content-length: 9\r\n\r\n"


@pytest.mark.parametrize("rest", [0.05, 1000])
def test_a_body_without_end_is_read_for_a_time(rest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sees at once that no more answers come."""

    async def main() -> None:
        async with connected(refuse) as (reader, writer, connections):
            writer.write(POST + NINE + b"abc")
            assert (await reader.read()).startswith(b"HTTP/1.1 401")
            if rest == 1000:
                assert connections
                writer.write(b"defghi")
            await until(lambda: not connections)

    monkeypatch.setattr(protocol, "REST", rest)
    asyncio.run(main())


async def fail(scope: Any, receive: Any, send: Any) -> None:
    """Fail after the head of an answer."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    raise ValueError


@pytest.mark.parametrize(
    ("app", "data"), [(refuse, POST + b"expect: 100-continue\r\n" + NINE), (fail, POST + NINE + b"abc")]
)
def test_nobody_waits_for_a_body_that_does_not_come(app: Any, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the client waits for a word before it sends one, or knows that its answer has failed."""

    async def main() -> None:
        async with connected(app) as (_, writer, connections):
            writer.write(data)
            await until(lambda: bool(connections))
            await until(lambda: not connections)

    monkeypatch.setattr(protocol, "REST", 1000)
    asyncio.run(main())


def test_requests_after_the_last_answer_are_not_computed() -> None:
    paths = []

    async def note(scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope["path"])
        await refuse(scope, receive, send)

    async def main() -> None:
        async with connected(note) as (reader, writer, connections):
            writer.write(POST + NINE + b"abc")
            await reader.read()
            writer.write(b"defghi" + LAST)
            await until(lambda: not connections)

    asyncio.run(main())
    assert paths == ["/a"]


def test_a_connection_is_idle_after_the_rest_of_a_body_too() -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 429, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"no"})

    async def main() -> None:
        async with connected(answer, 0.05) as (reader, writer, connections):
            writer.write(POST + NINE + b"abc")
            await reader.readuntil(b"no")
            writer.write(b"defghi")
            await until(lambda: not connections)

    asyncio.run(main())


async def large(scope: Any, receive: Any, send: Any) -> None:
    """Answer with 40 MB, more than a system holds for a client that does not read."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"40000000")]})
    for _ in range(10):
        await send({"type": "http.response.body", "body": b"a" * 4_000_000, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def ask_for_much(enough: int, pause: float = 0.0, stalls: bool = False) -> int:
    """Return how many bytes come until a client has enough or is cut off; it may pause after each read.

    One that stalls reads nothing before it is cut off. Systems hold little of an answer, so that each read lets it go
    on, however slow the machine is.
    """
    config = uvicorn.Config(large, http=Protocol, ws="none", lifespan="off", log_config=None)
    config.load()
    loop, made = asyncio.get_running_loop(), list[Protocol]()

    def protocol() -> Protocol:
        made.append(Protocol(config, ServerState(), {}))
        return made[-1]

    server = await loop.create_server(protocol, "127.0.0.1", 0)
    server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
    count = 0
    async with server:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        sock.setblocking(False)
        await loop.sock_connect(sock, server.sockets[0].getsockname())
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 14)
        writer.write(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
        while stalls and not (made and made[0].transport.is_closing()):
            await asyncio.sleep(0.01)
        with suppress(ConnectionError):
            while count < enough:
                part = await reader.read(1 << 20)
                count += len(part)
                if not part:
                    break
                await asyncio.sleep(pause)
        writer.transport.abort()
    return count


def test_a_client_that_takes_nothing_is_cut_off_and_one_that_takes_it_slowly_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whiten_serving.http.protocol.STALLED", 1.0)
    assert asyncio.run(asyncio.wait_for(ask_for_much(40_000_000, stalls=True), 60)) < 40_000_000
    assert asyncio.run(ask_for_much(40_000_000)) >= 40_000_000
    assert asyncio.run(ask_for_much(4_000_000, pause=0.02)) >= 4_000_000
