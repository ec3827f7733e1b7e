"""Bodies that are too large, too deep, slow or no JSON: each is answered in its dialect, soon, and nothing hangs."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.asgi import FIELDS as FIELDS_OF_TEXTS
from support.asgi import ask, asked
from support.corpus import NASTY
from whiten_runtime.errors import BundleError, ClosedError, TextError, TooLongError, UsageError
from whiten_serving import DeadlineExceededError, OverloadedError, TooManyTokensError
from whiten_serving.http.app import ENDPOINTS
from whiten_serving.http.errors import PROBLEMS, ApiError, of_answer, of_request

EMBEDDINGS = "/v1/embeddings"
POSTS = sorted({endpoint.path for endpoint in ENDPOINTS if endpoint.method == "POST" and "{" not in endpoint.path})
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


LONG = "word " * 300
PAIR = {"source_sentence": "a", "sentences": ["b"]}

BAD_CALLS: list[tuple[str, object, int, str, str]] = [
    # path, body, status, code of OpenAI's errors or error_type of TEI's, a word of the message
    (EMBEDDINGS, b"", 400, "invalid_json", "not JSON"),
    (EMBEDDINGS, b"nothing", 400, "invalid_json", "not JSON"),
    (EMBEDDINGS, b'{"input": "\xff\xfe"}', 400, "invalid_json", "UTF-8"),
    (EMBEDDINGS, b'{"input": ["\xc3"]}', 400, "invalid_json", "UTF-8"),
    (EMBEDDINGS, b'{"input": ' + b"[" * 200_000, 400, "invalid_json", "nested"),
    (EMBEDDINGS, b'{"input": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", 400, "invalid_json", "nested"),
    (EMBEDDINGS, b"[" * 200_000, 400, "invalid_type", "object"),
    (EMBEDDINGS, [1], 400, "invalid_type", "object"),
    (EMBEDDINGS, "a", 400, "invalid_type", "object"),
    (EMBEDDINGS, {}, 400, "invalid_type", "'input' is missing"),
    (EMBEDDINGS, {"input": 3}, 400, "invalid_type", "input"),
    (EMBEDDINGS, {"input": None}, 400, "invalid_type", "input"),
    (EMBEDDINGS, {"input": ["a", None]}, 400, "invalid_type", "input[1]"),
    (EMBEDDINGS, {"input": ["a", 3]}, 400, "invalid_type", "input[1]"),
    (EMBEDDINGS, {"input": ["a", [1]]}, 400, "invalid_type", "input[1]"),
    (EMBEDDINGS, {"input": []}, 400, "empty_input", "input"),
    (EMBEDDINGS, {"inpt": "a"}, 400, "unknown_field", "'inpt'"),
    (EMBEDDINGS, {"input": "a", "task": "retrieval"}, 400, "unknown_field", "'task'"),
    (EMBEDDINGS, {"input": [1, 2]}, 400, "token_ids", "check_embedding_ctx_length=False"),
    (EMBEDDINGS, {"input": [[1], [2, 3]]}, 400, "token_ids", "check_embedding_ctx_length=False"),
    (EMBEDDINGS, {"input": [3, "a"]}, 400, "token_ids", "token ids"),
    (EMBEDDINGS, {"input": [["a"]]}, 400, "token_ids", "token ids"),
    (EMBEDDINGS, {"input": [[]]}, 400, "token_ids", "token ids"),
    (EMBEDDINGS, b'{"input": [' + b"[]," * 8_000_000 + b"[]]}", 400, "token_ids", "token ids"),
    (EMBEDDINGS, {"input": "a", "dimensions": 99}, 400, "dimensions", "dimensions is 99"),
    (EMBEDDINGS, {"input": "a", "dimensions": 0}, 400, "invalid_type", "dimensions"),
    (EMBEDDINGS, {"input": "a", "dimensions": "5"}, 400, "invalid_type", "dimensions"),
    (EMBEDDINGS, {"input": "a", "encoding_format": "hex"}, 400, "invalid_type", "'hex'; wanted 'float', 'base64'"),
    (EMBEDDINGS, {"input": "a", "input_type": "Query"}, 400, "invalid_type", "'Query'; wanted 'query', 'document'"),
    (
        EMBEDDINGS,
        {"input": "a", "truncate": "end"},
        400,
        "invalid_type",
        "'end'; wanted true, false, 'NONE', 'START', 'END'",
    ),
    (EMBEDDINGS, {"input": "a", "precision": "float16"}, 400, "invalid_type", "wanted 'float32', 'int8'"),
    (EMBEDDINGS, {"input": "a", "prompt_name": "query"}, 400, "unsupported_value", "prompt_name"),
    (EMBEDDINGS, {"input": ["a", LONG], "truncate": False}, 400, "context_length_exceeded", "texts[1]"),
    (EMBEDDINGS, {"input": LONG, "truncate": "NONE"}, 400, "context_length_exceeded", "texts[0]"),
    (EMBEDDINGS, {"input": LONG, "truncate": "START"}, 400, "unsupported_value", "right"),
    (EMBEDDINGS, {"input": ["a"] * 2049}, 413, "too_many_texts", "2049"),
    (EMBEDDINGS, b'{"input": "' + b" " * (32_000_001 - 13) + b'"}', 413, "body_too_large", "32000000"),
    (
        EMBEDDINGS,
        b'{"input": "a", "metadata": {"a": [' + b"{}," * 8_000_000 + b"{}]}}",
        400,
        "invalid_type",
        "metadata",
    ),
    ("/embed", b"nothing", 422, "Validation", "not JSON"),
    ("/embed", {}, 422, "Validation", "'inputs' is missing"),
    ("/embed", {"inputs": 3}, 422, "Validation", "inputs"),
    ("/embed", {"inputs": []}, 400, "Empty", "inputs"),
    ("/embed", {"inputs": [1, 2]}, 422, "Validation", "token ids"),
    ("/embed", {"inputs": "a", "dimensions": 400}, 400, "Validation", "dimensions"),
    ("/embed", {"inputs": "a", "prompt_name": "none"}, 422, "Validation", "prompt_name"),
    ("/embed", {"inputs": "a", "task": "x"}, 422, "Validation", "task"),
    ("/embed", {"inputs": "a", "normalize": True, "parameters": {"normalize": False}}, 422, "Validation", "normalize"),
    ("/embed", {"inputs": LONG, "truncate": False}, 422, "Tokenizer", "texts[0]"),
    ("/embed", {"inputs": LONG, "truncation_direction": "Left"}, 422, "Validation", "right"),
    ("/embed", {"inputs": "a", "truncation_direction": "up"}, 422, "Validation", "'up'; wanted 'Left', 'Right'"),
    (
        "/embed",
        {"inputs": "a", "parameters": {"truncation_direction": "up"}},
        422,
        "Validation",
        "'up'; wanted 'Left', 'Right'",
    ),
    ("/embed", {"inputs": ["a"] * 2049}, 413, "Validation", "2049"),
    ("/similarity", {"inputs": {"source_sentence": "a"}}, 422, "Validation", "'sentences' is missing"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "Empty", "sentences"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [3]}}, 422, "Validation", "sentences[0]"),
    ("/similarity", {"inputs": PAIR, "parameters": {"normalize": True}}, 422, "Validation", "normalize"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"] * 2048}}, 413, "Validation", "2049"),
    ("/api/embed", [], 400, "", "object"),
    ("/api/embed", {}, 400, "", "'input' is missing"),
    ("/api/embed", {"input": [1, 2]}, 400, "", "token ids"),
    ("/api/embed", {"input": "a", "format": "json"}, 400, "", "format"),
    ("/api/embed", {"input": "a", "options": {"pooling": "cls"}}, 400, "", "pooling"),
    ("/api/embed", {"input": "a b c d e f g", "options": {"num_ctx": 2}}, 400, "", "num_ctx"),
    ("/api/embed", {"input": "a", "options": {"num_ctx": "20"}}, 400, "", "num_ctx"),
    ("/api/embed", {"input": LONG, "truncate": False}, 400, "", "tokens"),
]


@pytest.mark.parametrize(("path", "field"), FIELDS_OF_TEXTS.items())
@pytest.mark.parametrize(("texts", "status"), [(3, 200), (4, 413)])
def test_a_request_may_have_as_many_texts_as_the_limit(
    app_with: Any, path: str, field: str, texts: int, status: int
) -> None:
    assert asked(app_with(max_texts=3), "POST", path, {field: ["a"] * texts}).status == status


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "word"),
    BAD_CALLS,
    ids=lambda value: repr(value[:30]) if isinstance(value, bytes) else None,
)
def test_bad_calls(app: Any, path: str, body: object, status: int, code: str, word: str) -> None:
    answer = asked(app, "POST", path, body)
    found, error = answer.json(), answer.json()["error"]
    if path == EMBEDDINGS:
        assert set(error) == {"message", "type", "param", "code"}
        assert (answer.status, error["type"], error["code"]) == (status, "invalid_request_error", code), error
        message = error["message"]
    else:
        assert found == ({"error": error, "error_type": code} if code else {"error": error})
        assert answer.status == status, error
        message = error
    assert word in message
    assert "\n" not in message
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("options", "texts", "code", "kind", "status"),
    [
        ({"on_long": "error"}, ["a", LONG], "context_length_exceeded", "Tokenizer", 422),
        ({"empty": "error"}, ["a", ""], "empty_text", "Empty", 400),
    ],
)
def test_texts_that_the_operator_refuses(
    app_with: Any, options: Any, texts: list[str], code: str, kind: str, status: int
) -> None:
    answer = asked(app_with(**options), "POST", EMBEDDINGS, {"input": texts})
    assert (answer.status, answer.json()["error"]["code"]) == (400, code)
    answer = asked(app_with(**options), "POST", "/embed", {"inputs": texts})
    assert (answer.status, answer.json()["error_type"]) == (status, kind)


def test_the_field_at_fault_is_named(app: Any) -> None:
    for body, param in (({"input": 3}, "input"), ({"input": "a", "task": "x"}, "task"), ([], None)):
        assert asked(app, "POST", EMBEDDINGS, body).json()["error"]["param"] == param


def test_a_body_without_a_length_is_bounded_too(app_with: Any) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 400

    answer = asked(app_with(max_body=1000), "POST", EMBEDDINGS, parts())
    assert (answer.status, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("length", ["1" * 19, "0" * 5000 + "5", "9" * 5000, "-1", "1_0", "5, 5"])
def test_lengths_that_no_body_has_are_refused(app: Any, length: str) -> None:
    answer = asked(app, "POST", EMBEDDINGS, b'{"input": "a"}', headers={"content-length": length})
    assert (answer.status, answer.json()["error"]["code"]) == (413, "body_too_large")


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
    answer = asked(app_with(), "POST", EMBEDDINGS, {"input": "word " * 1_500_000})
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
    stats = app.state.service.models.get("tiny").queue.scheduler.stats()
    assert (stats.queue_tokens, stats.queue_requests) == (0, 0)


def test_statuses_that_clients_try_again_are_those_that_may_help() -> None:
    """openai-python tries 408, 409, 429 and all from 500 on again, unless x-should-retry says no."""
    for code, problem in PROBLEMS.items():
        again = problem.status in (408, 409, 429) or (problem.status >= 500 and code != "deadline")
        assert again == ("x-should-retry" not in ApiError(code, "a").headers), code


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (TooLongError("texts[1] has 9 tokens, but the bundle takes 8; shorten it"), "context_length_exceeded", 400),
        (TextError("texts[1] is None"), "invalid_type", 400),
        (UsageError("this bundle stores no moments"), "unsupported_value", 400),
        (OverloadedError("too many requests", 7.4), "queue_full", 429),
        (DeadlineExceededError("not computed within 1 s"), "deadline", 504),
        (TooManyTokensError("the request has 9 tokens, and 8 is the limit", 8), "too_many_tokens", 413),
        (ClosedError("the batcher is closed; create a new one"), "draining", 503),
        (BundleError("/srv/closed-beta/b/model.onnx: is damaged"), "engine", 500),
        (BundleError("the bundle's tokenizer fails"), "engine", 500),
        (RuntimeError("[ONNXRuntimeError] : 6 :\n RUNTIME_EXCEPTION"), "engine", 500),
        (MemoryError(), "engine", 500),
    ],
)
def test_errors_of_the_library(error: Exception, code: str, status: int) -> None:
    found = of_request(error)
    assert (found.code, found.problem.status) == (code, status)
    assert "\n" not in found.message
    assert "/srv" not in found.message


@pytest.mark.parametrize(
    ("seconds", "header", "milliseconds"), [(7.4, "7", "7400"), (0.0, "1", "50"), (1e9, "600", "600000")]
)
def test_the_time_to_wait(seconds: float, header: str, milliseconds: str) -> None:
    headers = dict(of_answer(OverloadedError("full", seconds)).headers)
    assert headers == {"retry-after": header, "retry-after-ms": milliseconds}
