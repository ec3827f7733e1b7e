"""Run `whiten serve` in a process of its own, and call it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

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
        fds: file descriptors that it inherits.
    """

    def __init__(self, *arguments: object, variables: dict[str, str] | None = None, fds: tuple[int, ...] = ()) -> None:
        words = [str(word) for word in arguments]
        if not {"--uds", "--fd", "--port"} & set(words):
            words += ["--port", "0"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**(variables or {})),
            pass_fds=fds,
            cwd=ROOT,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        self.process.stderr.close()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self.ready = self.message("ready")
        name = self.ready["address"]
        transport = httpx.HTTPTransport(uds=name.removeprefix("unix:")) if name.startswith("unix:") else None
        base = "http://test" if transport else f"http://{name}"
        self.client = httpx.Client(
            base_url=base, transport=transport, timeout=PATIENCE, headers={"connection": "close"}
        )
        host, _, port = name.rpartition(":")
        self.address = (host.strip("[]"), int(port)) if port.isdigit() else name
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)

    def message(self, beginning: str, after: int = 0, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait for a message of the log that begins so, among the lines from `after` on, and return it."""
        found: dict[str, Any] | None = None

        def there() -> bool:
            nonlocal found
            messages = map(_parsed, self.lines[after:])
            found = next((one for one in messages if str(one.get("message", "")).startswith(beginning)), None)
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

    def connect(self) -> socket.socket:
        """Open a connection."""
        return socket.create_connection(self.address, PATIENCE)

    def call(self, method: str, path: str, body: object = None, headers: Any = None) -> httpx.Response:
        """Send one request."""
        given = {} if body is None else {"json": body}
        return self.client.request(method, path, headers=headers, **given)  # type: ignore[arg-type]

    def embed(self, text: str, model: str | None = None, **headers: str) -> httpx.Response:
        """Embed a text by the route of OpenAI."""
        body = {"input": text} | ({"model": model} if model else {})
        return self.call("POST", "/v1/embeddings", body, headers)


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


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {"message": line}
    return found if isinstance(found, dict) else {"message": line}
