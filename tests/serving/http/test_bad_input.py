"""Bodies that are too large, too deep, slow or no JSON: each is answered in its dialect, soon, and nothing hangs."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.asgi import ask, asked
from support.corpus import NASTY
from whiten_serving.http.app import ENDPOINTS

EMBEDDINGS = "/v1/embeddings"
POSTS = sorted({endpoint.path for endpoint in ENDPOINTS if endpoint.request is not None and "{" not in endpoint.path})
FIELDS = (
    *("input", "inputs", "prompt", "model", "encoding_format", "dimensions", "precision", "truncate", "normalize"),
    *("options", "parameters", "prompt_name", "source_sentence", "sentences", "input_type", "user", "keep_alive"),
)
ALLOWED = {200, 400, 404, 405, 413, 415, 422}

texts = st.text(max_size=30) | st.sampled_from(NASTY)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3))
objects = st.dictionaries(st.sampled_from(FIELDS), values | st.lists(texts, max_size=5), max_size=5)
valid = st.builds(lambda field, value: {field: value}, st.sampled_from(["input", "inputs"]), texts | st.lists(texts))


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"nothing", 400, "invalid_json"),
        (b'{"input": "\xff\xfe"}', 400, "invalid_json"),
        (b'{"input": ["\xc3"]}', 400, "invalid_json"),
        (b'{"input": ' + b"[" * 200_000, 400, "invalid_json"),
        (b'{"input": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", 400, "invalid_json"),
        (b"[" * 200_000, 400, "invalid_type"),
        (b"[1]", 400, "invalid_type"),
        (b'{"input": 3}', 400, "invalid_type"),
        (b'{"input": ["a", 3]}', 400, "invalid_type"),
        (b'{"input": null}', 400, "invalid_type"),
        (b'{"inpt": "a"}', 400, "unknown_field"),
        (b"{}", 400, "invalid_type"),
        (b'{"input": []}', 400, "empty_input"),
        (b'{"input": [1, 2]}', 400, "token_ids"),
        (b'{"input": [[1], [2]]}', 400, "token_ids"),
        (b'{"input": "a", "dimensions": 99}', 400, "dimensions"),
        (json.dumps({"input": ["a"] * 2049}).encode(), 413, "too_many_texts"),
        (json.dumps({"input": "a" * 1_000_001}).encode(), 413, "text_too_long"),
        (b'{"input": "' + b" " * (32_000_001 - 13) + b'"}', 413, "body_too_large"),
        (b'{"input": [' + b"[]," * 8_000_000 + b"[]]}", 400, "token_ids"),
        (b'{"input": "a", "metadata": {"a": [' + b"{}," * 8_000_000 + b"{}]}}", 400, "invalid_type"),
    ],
    ids=lambda value: f"{value[:30]!r}" if isinstance(value, bytes) else None,
)
def test_bodies_that_are_refused(app: Any, body: bytes, status: int, code: str) -> None:
    answer = asked(app, "POST", EMBEDDINGS, body)
    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (status, code), error
    assert answer.headers["x-should-retry"] == "false"


def test_a_body_without_a_length_is_bounded_too(app_with: Any) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 400

    answer = asked(app_with(max_body=1000), "POST", EMBEDDINGS, parts())
    assert (answer.status, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"


def test_a_body_that_never_ends_is_504(app_with: Any) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    answer = asked(app_with(timeout=0.1), "POST", EMBEDDINGS, slow())
    assert (answer.status, answer.json()["error"]["code"]) == (504, "deadline")


def test_compressed_bodies_and_headers_that_are_none_are_refused(app: Any) -> None:
    answer = asked(app, "POST", EMBEDDINGS, b"x", headers={"content-encoding": "gzip"})
    assert (answer.status, answer.json()["error"]["code"]) == (415, "unsupported_encoding")
    for bad in ("soon", "-1", "1.5", "1" * 13):
        answer = asked(app, "POST", EMBEDDINGS, {"input": "a"}, headers={"x-timeout-ms": bad})
        assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid_header")


def test_a_text_of_megabytes_is_cut(app_with: Any) -> None:
    answer = asked(app_with(max_text_chars=10_000_000), "POST", EMBEDDINGS, {"input": "word " * 1_500_000})
    assert (answer.status, answer.headers["x-whiten-truncated"]) == (200, "1")


async def status_of(app: Any, path: str, body: bytes) -> int:
    answer = await asyncio.wait_for(ask(app, "POST", path, body), 20)
    if answer.headers["content-type"] == "application/json":
        json.loads(answer.body)
    return answer.status


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(POSTS), objects | valid | values)
def test_json_of_all_kinds(app: Any, path: str, value: Any) -> None:
    assert asyncio.run(status_of(app, path, json.dumps(value).encode())) in ALLOWED


def test_changed_bodies(app: Any) -> None:
    chance, good = random.Random(7), b'{"input": ["A text.", "b"], "dimensions": 3, "encoding_format": "float"}'
    for _ in range(500):
        body = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        assert asyncio.run(status_of(app, EMBEDDINGS, bytes(body))) in ALLOWED
    stats = app.state.service.models.get("tiny").embeds.batcher.stats()
    assert (stats.queue_tokens, stats.queue_requests) == (0, 0)
