"""Requests that offer another protocol, as Java's HttpClient and curl --http2 do, are answered in HTTP/1.1."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server import Answer, RunningServer, received

OFFER = "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
TEXT = "A text that is sent with an offer."
BODY = json.dumps({"input": TEXT}).encode()


def post(body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    length = "" if "chunked" in lines else f"content-length: {len(body)}\r\n"
    return f"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\n{OFFER}{length}{lines}\r\n".encode() + body


def get(*headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"GET /live HTTP/1.1\r\nhost: a\r\n{OFFER}{lines}\r\n".encode()


@pytest.fixture(scope="module")
def server(golden: Path) -> Iterator[RunningServer]:
    with RunningServer(golden / "bundle-v1", "--no-access-log") as running:
        yield running


def test_the_body_is_read(server: RunningServer) -> None:
    chunks = b"5\r\n" + BODY[:5] + b"\r\n" + f"{len(BODY) - 5:x}\r\n".encode() + BODY[5:] + b"\r\n0\r\n\r\n"
    expected = server.embed(TEXT).vector()
    for data in (
        post(BODY, "connection: close"),
        post(chunks, "transfer-encoding: chunked", "connection: close"),
    ):
        for cut in (len(data), 10, 60, len(data) - len(BODY), len(data) - 3):
            with server.connect() as sock:
                sock.sendall(data[:cut])
                sock.sendall(data[cut:])
                answer = Answer.of(received(sock))
            assert (answer.status, answer.headers.get("upgrade")) == (200, None), answer.body
            assert answer.vector() == expected


def test_a_body_that_is_waited_for(server: RunningServer) -> None:
    with server.connect() as sock:
        data = post(BODY, "expect: 100-continue", "connection: close")
        sock.sendall(data[: -len(BODY)])
        assert sock.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(BODY)
        assert Answer.of(received(sock)).status == 200


def test_the_connection_goes_on(server: RunningServer) -> None:
    with server.connect() as sock:
        sock.sendall(get() + post(BODY) + get() + post(BODY) + get("connection: close"))
        assert received(sock).count(b"HTTP/1.1 200 OK") == 5


def test_connect_is_refused(server: RunningServer) -> None:
    """It asks for a tunnel, and what follows it is not for us."""
    for target in ("a.example:80", "/live"):
        with server.connect() as sock:
            sock.sendall(f"CONNECT {target} HTTP/1.1\r\nhost: a\r\n\r\n".encode() + get())
            found = received(sock)
        assert found.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 405"))
        assert found.count(b"HTTP/1.1 ") == 1


def test_curl(server: RunningServer) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    address = f"http://127.0.0.1:{server.address[1]}/v1/embeddings"
    said = subprocess.run(
        ["curl", "-sS", "--http2", "-m", "20", address, "-d", BODY.decode()], capture_output=True, check=False
    )
    if b"unsupported" in said.stderr.lower():
        pytest.skip("this curl has no HTTP/2")
    assert len(json.loads(said.stdout)["data"]) == 1, said
