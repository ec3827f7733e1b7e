"""What is refused before it costs memory or time: bodies, headers, texts, slow callers."""

import asyncio
import json
import time
from typing import Any

import pytest

from support.asgi import Client, ask, asked

EMBEDDINGS = "/v1/embeddings"


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status, answer.json()["error"]["code"]


def sent(app: Any, client: Client, headers: dict[str, str] | None = None) -> Any:
    async def run() -> Any:
        return await asyncio.wait_for(ask(app, "POST", EMBEDDINGS, headers=headers, client=client), 30)

    return asyncio.run(run())


@pytest.mark.parametrize("declared", ["99000000000", "9" * 40, str(32 * 2**20 + 1)])
def test_a_declared_body_that_is_too_large_is_never_read(app: Any, declared: str) -> None:
    client = Client([b"{"])
    answer = sent(app, client, {"content-length": declared})
    assert code_of(answer) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"
    assert client.received == 0


def test_a_body_in_parts_is_counted_and_given_up(app_with: Any) -> None:
    client = Client([b"x" * 1000] * 100)
    answer = sent(app_with(max_body=5000), client)
    assert code_of(answer) == (413, "body_too_large")
    assert client.received == 6


def test_a_body_in_parts_is_put_together(app: Any) -> None:
    body = json.dumps({"input": "In many parts: é"}, ensure_ascii=False).encode()
    assert sent(app, Client([bytes([one]) for one in body])).status == 200


def test_a_body_that_lies_about_its_length_is_counted(app_with: Any) -> None:
    assert code_of(sent(app_with(max_body=500), Client([b"x" * 501]), {"content-length": "10"})) == (
        413,
        "body_too_large",
    )


@pytest.mark.parametrize("length", ["-1", "1.5", "", "abc", "0x10", "\xb2"])
def test_a_length_that_is_none(app: Any, length: str) -> None:
    assert code_of(sent(app, Client([b"{}"]), {"content-length": length})) == (400, "invalid_header")


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "x" * 1000])
def test_compressed_bodies_are_refused(app: Any, encoding: str) -> None:
    client = Client([b"\x1f\x8b"])
    answer = sent(app, client, {"content-encoding": encoding})
    assert code_of(answer) == (415, "unsupported_encoding")
    assert (answer.headers["accept-encoding"], client.received) == ("identity", 0)
    assert sent(app, Client([b'{"input":"a"}']), {"content-encoding": "identity"}).status == 200


def test_a_slow_body_is_given_up(app_with: Any) -> None:
    begun = time.monotonic()
    answer = sent(app_with(body_timeout=0.2), Client([b"{"] * 1000, pause=0.05))
    assert code_of(answer) == (408, "body_timeout")
    assert answer.headers["connection"] == "close"
    assert time.monotonic() - begun < 10


def test_a_caller_that_goes_before_its_body_is_complete_gets_nothing(app: Any) -> None:
    class Gone(Client):
        async def receive(self) -> dict[str, Any]:
            return {"type": "http.disconnect"}

    assert sent(app, Gone([])) is None


@pytest.mark.parametrize(
    "headers",
    [{"x-large": "x" * 40_000}, {f"x-{index}": "y" * 100 for index in range(400)}, {"cookie": "z" * 200_000}],
)
def test_headers_that_are_too_large(app: Any, headers: dict[str, str]) -> None:
    answer = sent(app, Client([b"{}"]), headers)
    assert code_of(answer) == (431, "headers_too_large")
    assert answer.headers["connection"] == "close"


def test_a_path_that_is_too_long_is_cut_in_the_message(app: Any) -> None:
    answer = asked(app, "GET", "/" + "x" * 100_000)
    assert answer.status == 404
    assert len(answer.body) < 500


def test_too_many_texts(app_with: Any) -> None:
    app = app_with(max_texts=3)
    assert asked(app, "POST", EMBEDDINGS, {"input": ["a"] * 3}).status == 200
    assert code_of(asked(app, "POST", EMBEDDINGS, {"input": ["a"] * 4})) == (413, "too_many_texts")


def test_a_text_of_too_many_characters(app_with: Any) -> None:
    app = app_with(max_text_chars=10)
    assert asked(app, "POST", EMBEDDINGS, {"input": ["a" * 10]}).status == 200
    answer = asked(app, "POST", EMBEDDINGS, {"input": ["a", "a" * 11]})
    assert code_of(answer) == (413, "text_too_long")
    assert "input[1] has 11 characters" in answer.json()["error"]["message"]


def test_empty_texts_where_they_are_refused(app_with: Any) -> None:
    app = app_with(empty="error")
    assert code_of(asked(app, "POST", EMBEDDINGS, {"input": ["a", ""]})) == (400, "empty_text")
    assert code_of(asked(app, "POST", EMBEDDINGS, {"input": ""})) == (400, "empty_text")


@pytest.mark.parametrize(
    "path", [EMBEDDINGS, "/embed", "/", "/similarity", "/tokenize", "/decode", "/api/embed", "/api/show"]
)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\xff\xfe",
        b"{",
        b"[" * 100_000,
        b'{"input":' + b"[" * 100_000,
        b'{"x":' * 100_000,
        b'{"metadata":' + b'{"a":' * 100_000,
        b'{"input":"\xff"}',
        b'{"input":"\\ud800"}',
        b'{"input":NaN}',
        b'{"input":"a"} {}',
        b'{"input":1e999}',
        b'{"input":' + b"9" * 100_000 + b"}",
        "{'input': 'a'}".encode("utf-16"),
        b"<html>",
    ],
    ids=range(16),
)
def test_bodies_that_are_no_request_are_400_or_422(app: Any, path: str, body: bytes) -> None:
    answer = asked(app, "POST", path, body)
    refused = 400 if path.startswith(("/v1", "/api")) else 422
    assert answer.status == refused or (answer.status == 413 and b"65536 lists" in answer.body)
    assert len(answer.body) < 1000


@pytest.mark.parametrize("path", [EMBEDDINGS, "/embed", "/", "/api/embed"])
def test_no_text_never_hangs(app: Any, path: str) -> None:
    key = "inputs" if path in ("/embed", "/") else "input"
    assert asked(app, "POST", path, {key: []}).status == (200 if path == "/api/embed" else 400)


def test_a_deadline_of_the_request(app: Any) -> None:
    answer = asked(app, "POST", EMBEDDINGS, {"input": "a"}, headers={"x-timeout-ms": "0"})
    assert code_of(answer) == (504, "deadline")
    assert asked(app, "POST", EMBEDDINGS, {"input": "a"}, headers={"x-timeout-ms": "30000"}).status == 200
    for bad in ("-5", "soon", "1e3", "", "9" * 13):
        answer = asked(app, "POST", EMBEDDINGS, {"input": "a"}, headers={"x-timeout-ms": bad})
        assert code_of(answer) == (400, "invalid_header")


def test_routes_without_a_queue_are_bounded_by_the_length_of_all_texts(app_with: Any) -> None:
    app = app_with(max_text_chars=100)
    assert asked(app, "POST", "/tokenize", {"inputs": ["a" * 50] * 2}).status == 200
    assert asked(app, "POST", "/tokenize", {"inputs": ["a" * 50] * 3}).status == 413
    assert asked(app, "POST", "/decode", {"ids": [[5] * 50] * 2}).status == 200
    assert asked(app, "POST", "/decode", {"ids": [[5] * 50] * 3}).status == 413


@pytest.mark.parametrize(("method", "path"), [("POST", "/embed"), ("GET", "/info"), ("POST", "/tokenize")])
def test_query_strings_of_too_many_fields(app: Any, method: str, path: str) -> None:
    answer = asked(app, method, path, {"inputs": "a"}, query="a=1&" * 101)
    assert (answer.status, answer.json()["error_type"]) == (422, "Validation")
    assert "query string" in answer.json()["error"]
    assert asked(app, method, path, {"inputs": "a"}, query="a=1&" * 99 + "model=tiny").status == 200


def test_the_name_of_an_unknown_field_is_cut(app: Any) -> None:
    answer = asked(app, "POST", EMBEDDINGS, {"input": "x", "q" * 1_000_000: 1})
    assert code_of(answer) == (400, "unknown_field")
    assert len(answer.body) < 1000
