"""Nothing heavy runs in the event loop.

The longest call of the event loop is compared with work that belongs into a thread: both are the processor's time,
measured in turn, the least of some tries, so that a slow machine is slow in both.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from support.asgi import asked


def seconds_of(function: Callable[[], object]) -> float:
    """Return the processor's time of a call."""
    begun = time.thread_time()
    function()
    return time.thread_time() - begun


SHARE = 0.4
"""The share of the heavy work's time that a call of the event loop may take, if that is more than 5 ms."""

MANY = [f"text {number}" for number in range(2048)]
HEAVY: dict[str, Any] = {
    "/v1/embeddings": {"input": MANY},
    "/embed": {"inputs": MANY},
    "/api/embed": {"input": MANY},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": MANY[1:]}},
    "/tokenize": {"inputs": ["word " * 100] * 60},
    "/api/show": {"model": "tiny"},
    "/metrics": None,
    "/info": None,
    "/v1/models": None,
}

ALIKE = ["word " * 3_100] * 2047
LONG = "word " * 6_200_000
SENTENCES = {"inputs": {"source_sentence": "a", "sentences": ALIKE}}
LARGE: dict[str, tuple[str, Callable[[], bytes], int]] = {
    "texts": ("/v1/embeddings", lambda: orjson.dumps({"input": ALIKE}), 200),
    "a text": ("/v1/embeddings", lambda: orjson.dumps({"input": LONG}), 200),
    "wide": ("/embed", lambda: orjson.dumps({"inputs": ["wörd " * 2_500] * 2048}), 200),
    "escaped": ("/api/embed", lambda: orjson.dumps({"input": ['"\n' * 3_500] * 2048}), 200),
    "a field without effect": ("/embed", lambda: orjson.dumps({"inputs": ALIKE, "add_special_tokens": True}), 200),
    "half a pair": ("/embed", lambda: b'{"inputs": ["\\ud800", "%b"]}' % LONG.encode(), 200),
    "sentences": ("/similarity", lambda: orjson.dumps(SENTENCES), 200),
    "texts to tokenise": ("/tokenize", lambda: orjson.dumps({"inputs": ALIKE}), 413),
    "token ids": ("/v1/embeddings", lambda: orjson.dumps({"input": [[101, 2003, 999] * 1_000] * 2048}), 413),
    "short texts": ("/embed", lambda: orjson.dumps({"inputs": ["ab"] * 6_000_000}), 413),
    "an unknown field": ("/api/show", lambda: orjson.dumps({"model": "tiny", "x": ALIKE}), 200),
    "no JSON": ("/embed", lambda: orjson.dumps({"inputs": ALIKE})[:-1], 422),
}
"""Bodies of 25 to 32 MB, and the status of each answer."""


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The longest time that a call of the event loop took so far, in a list."""
    seconds, run = [0.0], asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        begun = time.thread_time()
        run(handle)
        seconds[0] = max(seconds[0], time.thread_time() - begun)

    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    return seconds


def answer_in_json() -> str:
    """Return what an answer to all of ``MANY`` takes at least: that many vectors of 16 numbers, as JSON."""
    return json.dumps([[number / 7 for number in range(16)] for _ in MANY])


def body_in_json(body: bytes) -> None:
    """Read a body of JSON, right or wrong."""
    with contextlib.suppress(ValueError):
        orjson.loads(body)


def is_light(ask_once: Callable[[], object], longest: list[float], work: Callable[[], object]) -> bool:
    """Tell whether the longest call of the event loop is short compared with the work: the least of eight tries."""
    calls, works = list[float](), list[float]()
    for _ in range(8):
        longest[0] = 0.0
        ask_once()
        calls.append(longest[0])
        works.append(seconds_of(work))
        if min(calls) < max(0.005, SHARE * min(works)):
            return True
    print(calls, works)
    return False


@pytest.mark.parametrize("path", HEAVY)
def test_many_texts(app: Any, path: str, longest: list[float]) -> None:
    body = HEAVY[path]

    def ask_once() -> None:
        assert asked(app, "GET" if body is None else "POST", path, body).status == 200

    assert is_light(ask_once, longest, answer_in_json)


@pytest.mark.parametrize("name", LARGE)
def test_large_bodies(app_with: Any, name: str, longest: list[float]) -> None:
    app, (path, make, status) = app_with(token_ids="own"), LARGE[name]
    body = make()
    assert 24_000_000 < len(body) < 32_000_000

    def ask_once() -> None:
        answer = asked(app, "POST", path, body)
        assert answer.status == status, answer.body[:300]

    assert is_light(ask_once, longest, lambda: body_in_json(body))
