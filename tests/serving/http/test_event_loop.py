"""Nothing heavy runs in the event loop: measured in time of the processor, the least of some tries."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from support.asgi import asked


def seconds_of(function: Callable[[], object]) -> float:
    """Return the processor's time of a call, the least of five."""
    found = []
    for _ in range(5):
        begun = time.thread_time()
        function()
        found.append(time.thread_time() - begun)
    return min(found)


MOST = max(0.005, 1.1 * seconds_of(lambda: json.dumps([number / 7 for number in range(10_000)])))
"""Seconds that a call of the event loop may take: on a slower processor, as long as it takes for 10,000 numbers."""

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
    "a prompt": ("/api/embeddings", lambda: orjson.dumps({"prompt": LONG}), 200),
    "a field without effect": ("/embed", lambda: orjson.dumps({"inputs": ALIKE, "add_special_tokens": True}), 200),
    "half a pair": ("/embed", lambda: b'{"inputs": ["\\ud800", "%b"]}' % LONG.encode(), 200),
    "sentences": ("/similarity", lambda: orjson.dumps(SENTENCES), 200),
    "sentences at /": ("/", lambda: orjson.dumps(SENTENCES), 200),
    "texts to tokenise": ("/tokenize", lambda: orjson.dumps({"inputs": ALIKE}), 413),
    "token ids": ("/v1/embeddings", lambda: orjson.dumps({"input": [[101, 2003, 999] * 1_000] * 2048}), 413),
    "short texts": ("/embed", lambda: orjson.dumps({"inputs": ["ab"] * 6_000_000}), 413),
    "short sentences": ("/embed", lambda: orjson.dumps({"inputs": {"a": ["ab"] * 5_000_000}}), 413),
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


@pytest.mark.parametrize("path", HEAVY)
def test_many_texts(app: Any, path: str, longest: list[float]) -> None:
    body, found = HEAVY[path], list[float]()
    while len(found) < 5 and min(found, default=1) >= MOST:
        longest[0] = 0.0
        answer = asked(app, "GET" if body is None else "POST", path, body)
        assert answer.status == 200
        found.append(longest[0])
    assert min(found) < MOST, found


@pytest.mark.parametrize("name", LARGE)
def test_large_bodies(app_with: Any, name: str, longest: list[float]) -> None:
    app, (path, make, status) = app_with(token_ids="own"), LARGE[name]
    body, found = make(), list[float]()
    assert 24_000_000 < len(body) < 32_000_000
    while len(found) < 8 and min(found, default=1) >= MOST:
        longest[0] = 0.0
        answer = asked(app, "POST", path, body)
        assert answer.status == status, answer.body[:300]
        found.append(longest[0])
    assert min(found) < MOST, found
