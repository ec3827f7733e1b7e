"""Requests of all kinds: none hangs, and none is answered with 5xx that the server caused."""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.asgi import Client, ask
from support.nasty_texts import NASTY
from whiten_serving.http.routes import ROUTES

PATHS = sorted({route.path.replace("{deployment}", "tiny").replace("{id}", "tiny") for route in ROUTES})
REFUSING = {route.path for route in ROUTES if route.refuses}
"""Routes that answer 424 to all; elsewhere it says that the server failed."""
POSTS = sorted({route.path for route in ROUTES if route.request is not None and "{" not in route.path})
FIELDS = (
    *("input", "inputs", "prompt", "model", "ids", "encoding_format", "dimensions", "precision", "truncate"),
    *("normalize", "options", "parameters", "prompt_name", "source_sentence", "sentences", "input_type", "user"),
    *("truncation_direction", "add_special_tokens", "keep_alive", "name"),
)
ALLOWED = {200, 204, 400, 401, 404, 405, 408, 413, 415, 422, 424, 431}

texts = st.text(max_size=30) | st.sampled_from(NASTY)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3))
fields = st.sampled_from(FIELDS)
objects = st.dictionaries(fields, values | st.lists(texts, max_size=5), max_size=5)
queries = st.text(st.sampled_from("model=&%20;+ä\0"), max_size=40) | st.builds(
    lambda pair, count: pair * count, st.sampled_from(["a=1&", "model=tiny&", "&", "=", "%", "a&"]), st.integers(0, 400)
)
valid = st.builds(lambda field, value: {field: value}, st.sampled_from(["input", "inputs"]), texts | st.lists(texts))


async def _status(
    app: Any, method: str, path: str, body: bytes, headers: dict[str, str], parts: int, query: str = ""
) -> int:
    step = max(len(body) // parts, 1)
    client = Client([body[start : start + step] for start in range(0, len(body), step)])
    answer = await asyncio.wait_for(ask(app, method, path, headers=headers, client=client, query=query), 20)
    assert answer is not None
    assert answer.status != 424 or path in REFUSING, answer.body
    if answer.body and answer.headers["content-type"] == "application/json":
        json.loads(answer.body)
    return answer.status


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(POSTS), objects | valid | values, st.integers(1, 5))
def test_json_of_all_kinds(app: Any, path: str, value: Any, parts: int) -> None:
    body = json.dumps(value).encode()
    assert asyncio.run(_status(app, "POST", path, body, {}, parts)) in ALLOWED


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "PATCH", "x"]),
    st.sampled_from(PATHS) | st.text(max_size=20).map(lambda text: f"/{text}"),
    st.dictionaries(
        st.sampled_from(["content-length", "content-encoding", "x-timeout-ms", "x-request-id", "origin", "host"]),
        st.text(st.characters(max_codepoint=255), max_size=20),
    ),
    st.binary(max_size=60),
    queries,
)
def test_requests_of_all_kinds(
    app: Any, method: str, path: str, headers: dict[str, str], body: bytes, query: str
) -> None:
    assert asyncio.run(_status(app, method, path, body, headers, 1, query)) in ALLOWED | {504}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["GET", "POST"]), st.sampled_from(PATHS), queries)
def test_query_strings_of_all_kinds(app: Any, method: str, path: str, query: str) -> None:
    body = json.dumps({"inputs": "a"} if method == "POST" else {}).encode()
    assert asyncio.run(_status(app, method, path, body, {}, 1, query)) in ALLOWED


@pytest.mark.parametrize("path", [path for path in POSTS if path not in REFUSING])
def test_the_failure_of_a_route_would_be_seen(app: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr(type(app._service), "model", fail)
    monkeypatch.setattr(type(app.models), "named", fail)
    field = {"/decode": "ids", "/similarity": "inputs", "/api/show": "model", "/api/embeddings": "prompt"}
    value: Any = {"ids": [5]} if path == "/decode" else {field.get(path, "input"): "a"}
    if path in ("/embed", "/", "/invocations", "/tokenize"):
        value = {"inputs": "a"}
    if path == "/similarity":
        value = {"inputs": {"source_sentence": "a", "sentences": ["b"]}}
    try:
        status = asyncio.run(_status(app, "POST", path, json.dumps(value).encode(), {}, 1))
    except AssertionError:
        return
    assert status not in ALLOWED


def mutants(seed: int, count: int) -> list[tuple[str, bytes]]:
    """Return (path, body) of bodies that were valid once, and had bytes changed, cut, doubled or put in."""
    random_ = random.Random(seed)
    valid_bodies = [
        {"input": ["a text", "Käse 🧀"], "encoding_format": "base64", "dimensions": 4, "model": "tiny"},
        {"inputs": ["a text", "Käse 🧀"], "normalize": True, "parameters": {"truncate": True}},
        {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}},
        {"prompt": "a text", "options": {"num_ctx": 100}},
        {"ids": [[5, 6], [7]]},
    ]
    found = []
    for _ in range(count):
        body = bytearray(json.dumps(random_.choice(valid_bodies), ensure_ascii=random_.random() < 0.5).encode())
        for _ in range(random_.randint(0, 4)):
            place = random_.randrange(len(body) + 1)
            end = place + random_.randint(0, 6)
            kind = random_.randrange(4)
            if kind == 0:
                del body[place:end]
            elif kind == 1:
                body[place:place] = random_.randbytes(random_.randint(1, 4))
            elif kind == 2:
                body[place:place] = body[place:end] * random_.randint(1, 50)
            else:
                body[place:place] = random_.choice([b"[", b"{", b'"', b"null", b"1e999", b"\\ud800", b"-", b","])
        found.append((random_.choice(POSTS), bytes(body)))
    return found


async def _all(app: Any, requests: list[tuple[str, bytes]]) -> list[int]:
    limit = asyncio.Semaphore(16)

    async def one(path: str, body: bytes) -> int:
        async with limit:
            return await _status(app, "POST", path, body, {}, 1 + len(body) % 3)

    return await asyncio.gather(*(one(path, body) for path, body in requests))


def _check(app: Any, requests: list[tuple[str, bytes]], again: Callable[[], int]) -> None:
    statuses = asyncio.run(_all(app, requests))
    assert len(statuses) == len(requests)
    assert set(statuses) <= ALLOWED, {
        request: status for request, status in zip(requests, statuses, strict=True) if status >= 500
    }
    assert {200, 422, 400} <= set(statuses)
    assert again() == 200
    stats = app._service.models.get("tiny").embeds.stats()
    assert (stats.queue_tokens, stats.queue_requests) == (0, 0)


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_changed_bodies(app: Any, count: int) -> None:
    good = b'{"input": "a"}'
    _check(app, mutants(7, count), lambda: asyncio.run(_status(app, "POST", "/v1/embeddings", good, {}, 1)))
