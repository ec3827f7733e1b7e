"""SIGTERM under load: nothing that was sent is lost, and no connection is reset."""

import asyncio
import json
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from support.http_load import Load, closed_loop
from support.server import COMMAND, RunningServer, received, request, until

pytestmark = pytest.mark.slow

CLIENTS = 24


def body(number: int) -> tuple[str, object]:
    text = f"Sentence number {number} is not long."
    return text, {"input": [text]}


class InBackground(threading.Thread):
    """Sends a load in a thread of its own."""

    def __init__(self, server: RunningServer, **options: object) -> None:
        super().__init__(daemon=True)
        self.address, self.options = server.address, options
        self.load = Load()
        self.stop = False
        self.start()

    def run(self) -> None:
        load = closed_loop(self.address, CLIENTS, body, lambda: self.stop, **self.options)  # type: ignore[arg-type]
        self.load = asyncio.run(load)


@pytest.mark.parametrize("drain", ["0", "1s"])
def test_nothing_is_lost(drain: str, tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle, "--drain", drain, "--no-access-log") as server:
        background = InBackground(server)
        time.sleep(1.0)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        background.join(60)
    load = background.load
    assert load.lost == []
    assert set(load.answers) == {200}
    assert load.answers[200] > CLIENTS
    assert load.refused


def test_readiness_ends_first_and_the_listener_later(tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle, "--drain", "3s", "--no-access-log") as server:
        with server.connect() as kept:
            kept.sendall(request("GET", "/live"))
            first = b""
            while not first.endswith(b"live\n"):
                first += kept.recv(65536)
            assert first.startswith(b"HTTP/1.1 200")
            server.signal(signal.SIGTERM)
            server.message("draining")
            answer = server.call("GET", "/ready")
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert server.call("GET", "/live").status == 200
            kept.sendall(request("POST", "/v1/embeddings", {"input": "a"}))
            last = received(kept)  # until the server closes
            assert last.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in last.lower()
        assert server.wait() == 0
        with pytest.raises(ConnectionRefusedError):
            server.connect()


@pytest.mark.parametrize("left", [5, 60, 100])
def test_a_request_that_is_being_sent_when_the_drain_ends_is_answered(left: int, tiny_bundle: Path) -> None:
    """Some of its body is missing, or of its headers, or of its first line."""
    whole = request("POST", "/v1/embeddings", {"input": "a"})
    with RunningServer(tiny_bundle, "--drain", 0, "--grace", "20s", "--no-access-log") as server:
        with server.connect() as slow:
            slow.sendall(whole[:-left])
            until(lambda: server.call("GET", "/live").status == 200)
            server.signal(signal.SIGTERM)
            server.message("draining")
            time.sleep(1.5)
            slow.sendall(whole[-left:])
            answer = received(slow)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in answer
        assert server.wait() == 0


def test_a_request_that_is_sent_behind_others_when_the_drain_ends_is_answered(tiny_bundle: Path) -> None:
    """The connection has answered one before, and is kept."""
    whole = request("POST", "/v1/embeddings", {"input": "a"})
    with RunningServer(tiny_bundle, "--drain", 0, "--grace", "20s", "--no-access-log") as server:
        with server.connect() as slow:
            slow.sendall(request("GET", "/live") + whole[:60])
            assert slow.recv(65536).startswith(b"HTTP/1.1 200")
            server.signal(signal.SIGTERM)
            server.message("draining")
            time.sleep(1.5)
            slow.sendall(whole[60:])
            assert received(slow).count(b"HTTP/1.1 200") == 1
        assert server.wait() == 0


def test_the_grace_ends_what_takes_too_long(tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle, "--drain", 0, "--grace", "500ms") as server, server.connect() as slow:
        slow.sendall(request("POST", "/v1/embeddings", {"input": "a"})[:-5])
        time.sleep(0.3)
        start = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert time.monotonic() - start < 20
    assert not any("Traceback" in line for line in server.lines)


STUCK = {
    "a reload": "import whiten_serving.server.reloading as m; m.replaced = lambda *a: time.sleep(60); ",
    "a batch": (
        "from whiten_runtime.inference.token_runner import TokenRunner as m; old = m.run; "
        "m.run = lambda self, ids, *a, **k: time.sleep(60 if len(ids[0]) > 12 else 0) or old(self, ids, *a, **k); "
    ),
    "tokenising": (
        "from whiten_runtime.encoder import Encoder as m; old = m.tokenized; m.tokenized = "
        "lambda self, texts, *a, **k: time.sleep(60 if len(texts) > 90 else 0) or old(self, texts, *a, **k); "
    ),
}


@pytest.mark.parametrize("name", STUCK)
def test_the_grace_ends_what_runs_in_threads(name: str, tiny_bundle: Path) -> None:
    """Nothing can stop a thread, so the process ends around it, in order."""
    command = (sys.executable, "-c", f"import time; {STUCK[name]}{COMMAND}")
    texts = ["word " * 200] * 100
    with RunningServer(tiny_bundle, "--drain", 0, "--grace", "1s", command=command) as server:
        with server.connect() as waiting:
            server.signal(signal.SIGHUP)
            waiting.sendall(request("POST", "/v1/embeddings", {"input": texts}))
            time.sleep(1)
            begin = time.monotonic()
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            assert time.monotonic() - begin < 8
        messages = [json.loads(line) for line in server.lines]
        assert messages[-1]["message"] == "stopped"
        assert not any("Exception" in line or "Traceback" in line for line in server.lines)


def test_connections_that_wait_in_the_backlog_are_answered(tiny_bundle: Path) -> None:
    """Stop the process, connect and send meanwhile, send SIGTERM, and let it go on."""
    with RunningServer(tiny_bundle, "--drain", 0, "--no-access-log") as server:
        server.signal(signal.SIGSTOP)
        waiting = [server.connect() for _ in range(20)]
        for sock in waiting:
            sock.sendall(request("POST", "/v1/embeddings", {"input": "a"}))
        server.signal(signal.SIGTERM)
        server.signal(signal.SIGCONT)
        answers = [received(sock) for sock in waiting]
        assert [answer[:12] for answer in answers] == [b"HTTP/1.1 200"] * len(waiting)
        assert server.wait() == 0
        for sock in waiting:
            sock.close()
