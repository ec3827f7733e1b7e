"""Clients that send too much, too slowly, too often, or do not read."""

import re
import resource
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest

from support.server import Answer, RunningServer, parsed, received, request, until

pytestmark = pytest.mark.slow

FAST = ("--header-timeout", "1s", "--body-timeout", "1s", "--no-access-log")
BODY = b'{"input": "a"}'


def sent(server: RunningServer, data: bytes) -> bytes:
    """Send bytes on a connection of their own, and return all that comes until the server closes it."""
    with server.connect() as sock:
        sock.sendall(data)
        return received(sock)


def post(length: object, *headers: str) -> bytes:
    lines = ["POST /v1/embeddings HTTP/1.1", "host: test", f"content-length: {length}", *headers, "", ""]
    return "\r\n".join(lines).encode()


def test_a_thousand_idle_connections(tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle, "--header-timeout", "60s") as server:
        idle = [server.connect() for _ in range(1000)]
        begin = time.monotonic()
        assert server.embed("a").status == 200
        assert time.monotonic() - begin < 10
        for sock in idle[::100]:
            sock.sendall(request("GET", "/live", headers={"connection": "close"}))
            assert received(sock).startswith(b"HTTP/1.1 200")
        for sock in idle:
            sock.close()


def test_connections_that_say_nothing_are_closed(tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle, *FAST, "--keep-alive", "1s") as server:
        with server.connect() as silent:
            assert received(silent) == b""
        with server.connect() as kept:
            kept.sendall(request("GET", "/live"))
            assert received(kept).startswith(b"HTTP/1.1 200")  # and then the server closes


def test_slow_headers(tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle, *FAST) as server:
        with server.connect() as slow:
            begin = time.monotonic()
            answer = drip(slow, b"POST /v1/embeddings HTTP/1.1\r\nhost: test\r\n" + b"x-a: b\r\n" * 100)
            assert time.monotonic() - begin < 20
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert answer.json()["error"]["code"] == "slow_headers"
        assert server.embed("a").status == 200


def test_slow_bodies(tiny_bundle: Path) -> None:
    """A body that stops is given up, and so is one that drips for ever."""
    with RunningServer(tiny_bundle, *FAST) as server:
        stopped = Answer.of(sent(server, post(100) + BODY))
        assert (stopped.status, stopped.headers["connection"]) == (408, "close")
        with server.connect() as slow:
            slow.sendall(post(100_000))
            answer = drip(slow, b'{"input": "' + b"a" * 1000)
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert server.embed("a").status == 200


def drip(sock: socket.socket, data: bytes) -> Answer:
    """Send a byte every 50 ms until the server answers."""
    sock.settimeout(0.05)
    for byte in data:
        try:
            sock.sendall(bytes([byte]))
            found = sock.recv(65536)
        except TimeoutError:
            continue
        sock.settimeout(60)
        return Answer.of(found if b"}" in found else found + sock.recv(65536))
    raise AssertionError("the server took all of it")


def test_a_client_that_does_not_read(tiny_bundle: Path) -> None:
    """Its answer is larger than what the kernel keeps; its connection is ended, and its memory freed."""
    texts = {"input": ["a"] * 2000}
    with RunningServer(tiny_bundle, *FAST) as server:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(server.address)
            data = request("POST", "/v1/embeddings", texts)
            deaf.sendall(data * 20)  # pipelined: one answer is about a megabyte
            until(lambda: connections(server) == 0, 30)
        assert server.embed("a").status == 200


def connections(server: RunningServer) -> int:
    """Return the number of connections that the process has open now."""
    sockets = []
    for place in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed since
            sockets.append(place.readlink().name)
    table = Path(f"/proc/{server.process.pid}/net/tcp").read_text("utf-8").splitlines()[1:]
    inodes = {line.split()[9] for line in table if line.split()[3] == "01"}
    return sum(name.removeprefix("socket:[").rstrip("]") in inodes for name in sockets)


def test_99_gb_are_refused_before_any_is_read(tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle, "--no-access-log") as server:
        answer = Answer.of(sent(server, post(99_000_000_000)))
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert Answer.of(sent(server, post("9" * 30))).status in (400, 413)
        chunks = b"POST /v1/embeddings HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n"
        with server.connect() as endless:
            endless.sendall(chunks)
            try:
                for _ in range(100):
                    endless.sendall(b"f4240\r\n" + b" " * 1_000_000 + b"\r\n")
                found = received(endless)
            except (BrokenPipeError, ConnectionResetError):
                found = b"HTTP/1.1 413 closed while it was sent\r\n\r\n"
        assert Answer.of(found).status == 413
        assert memory(server) < 600_000_000


def memory(server: RunningServer) -> int:
    """Return the peak of the resident memory, in bytes."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_header_bombs(tiny_bundle: Path) -> None:
    begin = b"GET /live HTTP/1.1\r\nhost: test\r\n"
    bombs = {
        "one header of 200 KB": begin + b"x: " + b"a" * 200_000 + b"\r\n\r\n",
        "one that never ends": begin + b"x: " + b"a" * 200_000,
        "10,000 headers": begin + b"x: y\r\n" * 10_000 + b"\r\n",
        "a path of 200 KB": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: test\r\n\r\n",
    }
    with RunningServer(tiny_bundle, "--no-access-log") as server:
        for name, data in bombs.items():
            answer = Answer.of(sent(server, data))
            assert (answer.status, answer.headers["connection"]) == (431, "close"), name
            assert answer.json()["error"]["code"] == "headers_too_large", "answered once"
        fits = begin + b"x: " + b"a" * 20_000 + b"\r\nconnection: close\r\n\r\n"
        assert sent(server, fits).startswith(b"HTTP/1.1 200")


def test_what_is_no_http(tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle, "--no-access-log") as server:
        for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
            answer = Answer.of(sent(server, data))
            assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid_http")
        both = post(5, "transfer-encoding: chunked") + b"0\r\n\r\n"
        assert Answer.of(sent(server, both)).status == 400
        assert server.embed("a").status == 200
        assert not any("Traceback" in line for line in server.lines)


def test_a_websocket_is_not_begun(tiny_bundle: Path) -> None:
    upgrade = {
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": "a" * 22 + "==",
        "sec-websocket-version": "13",
    }
    with RunningServer(tiny_bundle, *FAST, "--keep-alive", "1s") as server:
        assert sent(server, request("GET", "/live", headers=upgrade)).startswith(b"HTTP/1.1 200")
        assert server.embed("a").status == 200


def test_more_connections_than_allowed_are_told_so(tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle, "--max-connections", 10, "--header-timeout", "60s") as server:
        idle = [server.connect() for _ in range(10)]
        with server.connect() as one_more:
            answer = Answer.of(received(one_more))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "connections"
        idle.pop().close()
        until(lambda: connections(server) < 10)
        assert server.embed("a").status == 200
        for sock in idle:
            sock.close()


@pytest.mark.parametrize("more", [(), ("--no-access-log",)])
def test_what_is_refused_before_it_is_a_request_is_counted_and_logged(tiny_bundle: Path, more: tuple[str, ...]) -> None:
    """A server that refuses connections must not look idle."""
    bounds = ("--max-connections", 3, "--header-timeout", "1s", "--body-timeout", "1s", "--log", "json")
    with RunningServer(tiny_bundle, *bounds, *more) as server:
        assert Answer.of(sent(server, b"x\0y\r\n\r\n")).status == 400
        assert Answer.of(sent(server, b"GET / HTTP/1.1\r\na: " + b"b" * 40_000)).status == 431
        assert Answer.of(sent(server, b"GET / HTTP/1.1\r\na: ")).status == 408
        assert Answer.of(sent(server, post(10))).status == 408
        idle = [server.connect() for _ in range(3)]
        until(lambda: Answer.of(sent(server, request("GET", "/live"))).status == 503)
        for sock in idle:
            sock.close()
        until(lambda: server.call("GET", "/live").status == 200)
        page = server.call("GET", "/metrics").body.decode()
        codes = ["invalid_http", "headers_too_large", "slow_headers", "slow_body", "connections"]
        counts = [re.search(rf'whiten_rejected_total{{reason="{code}"}} (\d+)', page) for code in codes]
        assert [found and int(found[1]) >= 1 for found in counts] == [True] * 5
        lines = [line for line in map(parsed, server.lines) if line.get("error") in codes]
        told = list(dict.fromkeys((line["error"], line["status"], line["route"]) for line in lines))
        statuses = [400, 431, 408, 408, 503]
        assert told == ([] if more else [(code, status, "-") for code, status in zip(codes, statuses, strict=True)])


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))


def test_file_descriptors_are_used_up(tiny_bundle: Path) -> None:
    """More clients than the process may have files: it answers those that fit, and all others when they have gone."""
    with RunningServer(tiny_bundle, "--header-timeout", "60s", before=few_files) as server:
        crowd = [server.connect() for _ in range(300)]
        time.sleep(1)
        assert server.process.poll() is None
        crowd[0].sendall(request("GET", "/live", headers={"connection": "close"}))
        assert received(crowd[0]).startswith(b"HTTP/1.1 200")
        for sock in crowd:
            sock.close()
        until(lambda: answered(server))
        assert server.embed("a").status == 200
        assert not any("Traceback" in line for line in server.lines)


def answered(server: RunningServer) -> bool:
    try:
        return server.call("GET", "/live").status == 200
    except (OSError, IndexError, ValueError):
        return False


def test_a_refusal_arrives_at_a_client_that_still_sends(tiny_bundle: Path) -> None:
    """Closing a connection with unread bytes resets it, and the answer is lost on the way."""
    with RunningServer(tiny_bundle, "--max-body", "1MB", "--no-access-log") as server:
        for _ in range(5):
            with server.connect() as sock:
                sock.sendall(post(3_000_000) + b" " * 3_000_000)
                assert Answer.of(received(sock)).status == 413


def test_a_refusal_is_not_taken_for_the_answer_of_an_earlier_request(tiny_bundle: Path) -> None:
    """What follows a request on its connection may be refused before that is answered."""
    for second, status in ((b"nonsense\r\n\r\n", 400), (b"GET /live HTTP/1.1\r\nx: " + b"a" * 600_000, 431)):
        with RunningServer(tiny_bundle, *FAST) as server, server.connect() as sock:
            sock.sendall(request("POST", "/v1/embeddings", {"input": ["a text"] * 500}) + second)
            found = received(sock)
        assert [int(part[:3]) for part in found.split(b"HTTP/1.1 ")[1:]] == [200, status]
