"""Drive a client in all its ways of getting vectors: URL STRICT BUSY TEXTS.json OUT.json.

`test_clients.py` runs the programs with_NAME.py, which import this, in an environment of their own, without whiten.
STRICT refuses texts that are too long, and BUSY refuses requests while a few others wait.
"""

import json
import logging
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

URL, STRICT, BUSY, _TEXTS, _OUT = sys.argv[1:6]
TEXTS: list[str] = json.loads(Path(_TEXTS).read_text("utf-8"))
LONG = max(TEXTS, key=len)
MODEL = "small"
KEY = "none"

Embed = Callable[[list[str]], Any]
"""What gives the vectors of texts."""

Ways = Mapping[str, Callable[[str], Embed]]
"""Functions that return an `Embed` for the address of a server."""


class _Statuses(logging.Handler):
    """Notes the statuses of the client's answers, which httpx logs, and calls a function at 429."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: list[int] = []
        self.refused: Callable[[], object] = lambda: None
        for name in ("httpx", "httpx2"):
            logger = logging.getLogger(name)
            logger.setLevel(logging.INFO)
            logger.addHandler(self)
            logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        if match := re.search(r'"HTTP/\S+ (\d+)', record.getMessage()):
            self.codes.append(int(match[1]))
            if self.codes[-1] == 429:
                self.refused()


_STATUSES = _Statuses()


def _outcome(embed: Embed, texts: list[str]) -> dict[str, Any]:
    """Return the vectors of texts or the error of the client, and the statuses of the answers."""
    _STATUSES.codes = []
    outcome: dict[str, Any] = {}
    try:
        outcome["vectors"] = np.asarray(embed(texts), np.float64).tolist()
    except Exception as error:
        outcome |= {"error": type(error).__name__, "message": str(error), "code": getattr(error, "code", None)}
    return outcome | {"statuses": [*_STATUSES.codes]}


class _Load:
    """Keeps requests waiting at BUSY until `stop`, after which none waits."""

    def __init__(self) -> None:
        self._end, self._refused = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._post, args=(number,), daemon=True) for number in range(4)]
        for thread in self._threads:
            thread.start()
        assert self._refused.wait(60), "nothing was refused"

    def _post(self, number: int) -> None:
        texts = [f"{number} {index} {TEXTS[index % len(TEXTS)]}" for index in range(256)]
        body = json.dumps({"model": MODEL, "input": texts}).encode()
        while not self._end.is_set():
            try:
                urllib.request.urlopen(urllib.request.Request(f"{BUSY}/v1/embeddings", body)).read()
            except urllib.error.HTTPError as error:
                if error.code != 429:
                    raise
                self._refused.set()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def _overload(embed: Embed) -> dict[str, Any]:
    """Return the outcome of a call that is refused; the load ends before the client can ask again."""
    for _ in range(50):
        load = _Load()
        _STATUSES.refused = load.stop
        outcome = _outcome(embed, TEXTS)
        load.stop()
        if 429 in outcome["statuses"]:
            return outcome
    raise AssertionError("no request of the client was refused")


def drive(ways: Ways) -> None:
    """Save the outcome of one text, a batch, a text that is too long, and an overload, for each way."""
    outcomes: dict[str, dict[str, Any]] = {}
    for name, way in ways.items():
        embed = way(URL)
        outcomes[name] = {
            "one": _outcome(embed, TEXTS[:1]),
            "batch": _outcome(embed, TEXTS),
            "refusal": _outcome(way(STRICT), ["short", LONG]),
            "overload": _overload(way(BUSY)),
        }
        for kind in ("refusal", "overload"):
            outcome = outcomes[name][kind]
            print(f"{name}, {kind}: {outcome['statuses']} {outcome.get('error')}: {outcome.get('message')}")
    Path(_OUT).write_text(json.dumps(outcomes), "utf-8")
