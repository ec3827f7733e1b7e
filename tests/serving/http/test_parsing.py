"""Bodies that cost much to understand: they are refused before they do, and those of texts alone are not."""

import asyncio
import json
import time
from typing import Any

import pytest

from support.asgi import ask, asked
from whiten_serving.http.errors import ApiError
from whiten_serving.http.parsing import _LISTS, _VALUES, Form, _is_crowded

EMPTY_LISTS = b"[" + b"[]," * 8_000_000 + b"[]]"
NUMBERS = b"[" + b"1," * 12_000_000 + b"1]"
OBJECTS = b'{"a":[' + b"{}," * 8_000_000 + b"{}]}"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/embeddings", b'{"input":' + EMPTY_LISTS + b"}", 413),
        ("/v1/embeddings", b'{"input":' + NUMBERS + b"}", 413),
        ("/v1/embeddings", b'{"input":"a","metadata":' + OBJECTS + b"}", 200),
        ("/embed", b'{"inputs":' + EMPTY_LISTS + b"}", 413),
        ("/", b'{"inputs":' + EMPTY_LISTS + b"}", 413),
        ("/decode", b'{"ids":' + EMPTY_LISTS + b"}", 413),
        ("/decode", b'{"ids":' + NUMBERS + b"}", 413),
        ("/tokenize", b'{"inputs":' + EMPTY_LISTS + b"}", 422),
        ("/api/embed", b'{"input":' + EMPTY_LISTS + b"}", 413),
        ("/api/embed", b'{"input":"a","options":' + OBJECTS + b"}", 400),
        ("/api/embeddings", b'{"prompt":"a","options":{"stop":' + EMPTY_LISTS + b"}}", 413),
    ],
    ids=lambda value: value[:40].decode() if isinstance(value, bytes) else None,
)
def test_bodies_of_millions_of_values_do_not_stop_other_requests(app: Any, path: str, body: bytes, status: int) -> None:
    async def run() -> tuple[int, float]:
        waiting = asyncio.create_task(ask(app, "POST", path, body))
        worst = 0.0
        while not waiting.done():
            begun = time.monotonic()
            await asyncio.sleep(0)
            worst = max(worst, time.monotonic() - begun)
        answer = waiting.result()
        assert answer is not None
        return answer.status, worst

    found, worst = asyncio.run(run())
    assert found == status
    assert worst < 1.5  # it was ten times that; the machine may be busy


def test_the_message_says_what_to_do(app: Any) -> None:
    answer = asked(app, "POST", "/v1/embeddings", b'{"input":' + b"[" + b"[]," * (_LISTS + 1) + b"[]]}")
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["param"]) == (413, "too_many_values", "input")
    assert "send several requests" in error["message"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed", "/", "/api/embed", "/tokenize"])
def test_texts_may_hold_as_many_commas_and_brackets_as_they_like(app: Any, path: str) -> None:
    text = "[{a}, " * (_LISTS // 2)
    name = "input" if path in ("/v1/embeddings", "/api/embed") else "inputs"
    value = ["a, [b]"] if path == "/tokenize" else [text, "a"]
    body: dict[str, Any] = {name: value}
    if path == "/v1/embeddings":
        body["metadata"] = {"any": [{"thing": text}]}
    if path == "/api/embed":
        body["options"] = {"num_ctx": 100_000, "temperature": 0.5, "seed": None}
    answer = asked(app, "POST", path, body)
    assert answer.status == 200, answer.body[:300]


@pytest.mark.parametrize(("options", "code"), [({"num_ctx": "many"}, 400), ({"num_ctx": 1}, 400), ({"new": 1}, 400)])
def test_options_are_checked_beside_long_texts_too(app: Any, options: dict[str, Any], code: int) -> None:
    answer = asked(app, "POST", "/api/embed", {"input": ["[" * (_LISTS + 1)], "options": options})
    assert answer.status == code
    assert next(iter(options)) in answer.json()["error"]


def test_errors_of_such_bodies_are_those_of_others(app: Any) -> None:
    text = "[" * (_LISTS + 1)
    for body, code in (
        ({"input": [text], "more": 1}, "unknown_field"),
        ({"input": [text], "dimensions": "a"}, "invalid_type"),
        ({"user": text}, "invalid_type"),
        ({"input": [text, 3]}, "too_many_values"),
    ):
        assert asked(app, "POST", "/v1/embeddings", body).json()["error"]["code"] == code
    assert asked(app, "POST", "/v1/embeddings", json.dumps({"input": text})[:-1].encode()).status == 400


def test_what_counts_as_too_much() -> None:
    assert not _is_crowded(b"," * _VALUES + b"[" * _LISTS)
    assert _is_crowded(b"," * (_VALUES + 1))
    assert _is_crowded(b"[{" * (_LISTS // 2) + b"{")
    assert _is_crowded(bytearray(b" " * 3_000_000 + b"[" * (_LISTS + 1)))
    with pytest.raises(ApiError, match="nested too deeply"):
        Form(list[Any]).parsed(b"[" * 100_000)
