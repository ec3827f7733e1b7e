"""Run `whiten serve` in a process of its own, and call it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import httpx

ROOT = Path(__file__).parents[2]
PACKAGES = ("runtime", "whitening", "serving")

COMMAND = "from whiten_runtime.commands import console; from whiten_serving.commands.serve import serve; "
COMMAND += "console.run(serve)"
"""The command `whiten serve`, for environments in which the package's entry points are not installed."""

WATCH_AFTER = 180.0
"""Seconds after which a server that says nothing has failed."""


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a server: this one's packages, and none of the variables of options."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WHITEN_")}
    path = os.pathsep.join(str(ROOT / package) for package in PACKAGES)
    return {**kept, "PYTHONPATH": path, **more}


class RunningServer:
    """Runs `whiten serve` until the block ends, on a free port if its arguments name no place to listen on."""

    def __init__(self, *arguments: object, variables: dict[str, str] | None = None, fds: tuple[int, ...] = ()) -> None:
        words = [str(word) for word in arguments]
        if "--listen" not in words:
            words += ["--listen", "0"]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lines are read after the block too)
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words],
            stderr=self._log,
            env=environment(**(variables or {})),
            pass_fds=fds,
            cwd=ROOT,
        )

    def __enter__(self) -> Self:
        self.ready = self.message("ready")
        name = self.ready["address"]
        transport = httpx.HTTPTransport(uds=name.removeprefix("unix:")) if name.startswith("unix:") else None
        base = "http://test" if transport else f"http://{name}"
        self.client = httpx.Client(
            base_url=base, transport=transport, timeout=WATCH_AFTER, headers={"connection": "close"}
        )
        host, _, port = name.rpartition(":")
        self.address = (host.strip("[]"), int(port)) if port.isdigit() else name
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait(WATCH_AFTER)

    @property
    def lines(self) -> list[str]:
        """Return the whole lines of the log; the place in the file is the process's."""
        content = os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0)
        return content.decode().rpartition("\n")[0].splitlines()

    def message(self, beginning: str, after: int = 0) -> dict[str, Any]:
        """Wait for a message of the log that begins so, among the lines from `after` on, and return it."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            ended = self.process.poll() is not None
            messages = map(_parsed, self.lines[after:])
            found.extend(one for one in messages if str(one.get("message", "")).startswith(beginning))
            assert found or not ended, f"no message {beginning!r}: {self.lines[-20:]}"
            return bool(found)

        until(there)
        return found[0]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        return self.process.wait(WATCH_AFTER)

    def call(self, method: str, path: str, body: object = None, headers: Any = None) -> httpx.Response:
        """Send one request."""
        given = {} if body is None else {"json": body}
        return self.client.request(method, path, headers=headers, **given)  # type: ignore[arg-type]

    def embed(self, text: str, model: str | None = None, **headers: str) -> httpx.Response:
        """Embed a text by the route of OpenAI."""
        body = {"input": text} | ({"model": model} if model else {})
        return self.call("POST", "/v1/embeddings", body, headers)


class Load:
    """Clients that post one request after another to /v1/embeddings, until `stop` or until nothing listens any more."""

    def __init__(self, address: tuple[str, int], clients: int, body: object) -> None:
        self.answers: list[httpx.Response] = []
        self.lost: list[str] = []  # requests that were sent and not answered
        self.refused = 0  # connections, because nothing listens any more
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(clients)
        url = f"http://{address[0]}:{address[1]}/v1/embeddings"
        self._clients = [self._pool.submit(self._send, url, body) for _ in range(clients)]

    def _send(self, url: str, body: object) -> None:
        with httpx.Client(timeout=WATCH_AFTER) as client:
            while not self._stop.is_set() and not self.refused:
                try:
                    self.answers.append(client.post(url, json=body))
                except httpx.ConnectError:
                    self.refused += 1
                except httpx.TransportError as error:
                    self.lost.append(repr(error))

    def stop(self) -> None:
        """Let every client end after its request."""
        self._stop.set()
        self._pool.shutdown()
        for client in self._clients:
            client.result()


def run(*arguments: object, variables: dict[str, str] | None = None) -> tuple[int, str]:
    """Run `whiten serve` where it must end by itself, and return its exit code and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(**(variables or {})),
        cwd=ROOT,
        timeout=WATCH_AFTER,
        check=False,
    )
    return done.returncode, done.stderr


def until(condition: Callable[[], object], seconds: float = WATCH_AFTER) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {"message": line}
    return found if isinstance(found, dict) else {"message": line}
