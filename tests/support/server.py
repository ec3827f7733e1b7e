"""Run `whiten serve` in a process of its own, and call it over raw sockets."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
PACKAGES = ("runtime", "whitening", "serving")

COMMAND = "from whiten_runtime.commands import console; from whiten_serving.commands.serve import serve; "
COMMAND += "console.run(serve)"
"""The command `whiten serve`, for environments in which the package's entry points are not installed."""

PATIENCE = 60.0
"""Seconds after which a server that says nothing has failed."""


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a server: this one's packages, and none of the variables of options."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WHITEN_")}
    path = os.pathsep.join(str(ROOT / package) for package in PACKAGES)
    return {**kept, "PYTHONPATH": path, **more}


class RunningServer:
    """Runs `whiten serve` until the block ends.

    Args:
        arguments: its arguments; a port is added if they name no place to listen on.
        variables: environment variables.
        before: function that the child calls before it begins.
        fds: file descriptors that it inherits.
        command: what is run in place of the command itself.
        place: whether a port is added.
        stderr_ends: whether its stderr is closed at this end when it is ready.
    """

    def __init__(
        self,
        *arguments: object,
        variables: dict[str, str] | None = None,
        before: Callable[[], object] | None = None,
        fds: Sequence[int] = (),
        command: Sequence[str] = (sys.executable, "-c", COMMAND),
        place: bool = True,
        stderr_ends: bool = False,
    ) -> None:
        words = [str(word) for word in arguments]
        if place and not {"--uds", "--fd", "--port"} & set(words):
            words += ["--port", "0"]
        self.process = subprocess.Popen(
            [*command, *words],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**(variables or {})),
            preexec_fn=before,
            pass_fds=fds,
            cwd=ROOT,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._stderr_ends = stderr_ends
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
            if self._stderr_ends:
                break
        self.process.stderr.close()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self.ready = self.message("ready")
        host, _, port = self.ready["address"].rpartition(":")
        self.address = (host.strip("[]"), int(port)) if port.isdigit() else self.ready["address"].partition(":")[2]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)

    def message(self, beginning: str, after: int = 0, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait for a message of the log that begins so, among the lines from `after` on, and return it."""
        found: dict[str, Any] | None = None

        def there() -> bool:
            nonlocal found
            found = next((one for one in map(parsed, self.lines[after:]) if _says(one, beginning)), None)
            return found is not None or self._ended

        with self._changed:
            self._changed.wait_for(there, seconds)
        assert found is not None, f"no message {beginning!r}: {self.lines[-20:]}"
        return found

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(PATIENCE)
        with self._changed:
            self._changed.wait_for(lambda: self._ended, PATIENCE)
        return code

    def connect(self, seconds: float = PATIENCE) -> socket.socket:
        """Open a connection."""
        family = socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(seconds)
        sock.connect(self.address)
        return sock

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> "Answer":
        """Send one request on a connection of its own."""
        with self.connect() as sock:
            sock.sendall(request(method, path, body, {"connection": "close", **(headers or {})}))
            return Answer.of(received(sock))

    def embed(self, text: str, model: str | None = None, **headers: str) -> "Answer":
        """Embed a text by the route of OpenAI."""
        body = {"input": text} | ({"model": model} if model else {})
        return self.call("POST", "/v1/embeddings", body, headers)


class Answer:
    """Holds an answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Return the answer that bytes hold."""
        head, _, body = data.partition(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        return cls(int(first.split()[1]), headers, body)

    def json(self) -> Any:
        return json.loads(self.body)

    def vector(self) -> list[float]:
        """Return the first vector of an answer of the route of OpenAI."""
        found: list[float] = self.json()["data"][0]["embedding"]
        return found


def run(*arguments: object, variables: dict[str, str] | None = None) -> tuple[int, str]:
    """Run `whiten serve` where it must end by itself, and return its exit code and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(**(variables or {})),
        cwd=ROOT,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stderr


def request(method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a request."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: test",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def received(sock: socket.socket) -> bytes:
    """Return all that arrives until the other side closes."""
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


def parsed(line: str) -> dict[str, Any]:
    """Return a line of the log, in either form."""
    try:
        found = json.loads(line)
    except ValueError:
        return {"message": line}
    return found if isinstance(found, dict) else {"message": line}


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def _says(message: dict[str, Any], beginning: str) -> bool:
    return str(message.get("message", "")).startswith(beginning)
