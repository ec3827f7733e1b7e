"""Bodies that are drawn: each is answered soon, and its strings are those that JSON says; long ones are not decoded."""

import asyncio
import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.asgi import ROUTES, ask, asked
from support.corpus import NASTY
from whiten_serving.http.app import ENDPOINTS
from whiten_serving.http.inputs import parse_body

EMBEDDINGS = "/v1/embeddings"
POSTS = sorted({endpoint.path for endpoint in ENDPOINTS if endpoint.method == "POST" and "{" not in endpoint.path})
FIELDS = (
    *("input", "inputs", "prompt", "model", "encoding_format", "dimensions", "precision", "truncate", "normalize"),
    *("options", "parameters", "prompt_name", "source_sentence", "sentences", "input_type", "user", "keep_alive"),
)
STATUSES = {200, 400, 404, 405, 413, 415, 422}

texts = st.text(max_size=30) | st.sampled_from(NASTY)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3))
objects = st.dictionaries(st.sampled_from(FIELDS), values | st.lists(texts, max_size=5), max_size=5)
valid = st.builds(lambda field, value: {field: value}, st.sampled_from(["input", "inputs"]), texts | st.lists(texts))


async def status_of(app: Any, path: str, body: bytes) -> int:
    answer = await asyncio.wait_for(ask(app, "POST", path, body), 20)
    if answer.headers["content-type"] == "application/json":
        json.loads(answer.body)
    return answer.status


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(POSTS), objects | valid | values)
def test_json_of_all_kinds(app: Any, path: str, value: Any) -> None:
    assert asyncio.run(status_of(app, path, json.dumps(value).encode())) in STATUSES


def test_changed_bodies(app: Any) -> None:
    chance, good = random.Random(7), b'{"input": ["A text.", "b"], "dimensions": 3, "encoding_format": "float"}'
    for _ in range(500):
        body = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        assert asyncio.run(status_of(app, EMBEDDINGS, bytes(body))) in STATUSES
    stats = app.state.service.models.get("tiny").queue.scheduler.stats()
    assert (stats.queue_tokens, stats.queue_requests) == (0, 0)


def test_the_routes_are_all_that_take_texts() -> None:
    posts = [endpoint for endpoint in ENDPOINTS if endpoint.method == "POST" and endpoint.path != "/api/show"]
    assert {endpoint.handler for endpoint in posts if endpoint.path in ROUTES} == {each.handler for each in posts}


@pytest.mark.parametrize("item", ["ab", "", "a\\", []], ids=["texts", "empty", "backslashes", "ids"])
def test_many_tiny_items_are_counted_before_they_are_decoded(
    app_with: Any, monkeypatch: pytest.MonkeyPatch, item: object
) -> None:
    decoded: list[int] = []

    class Decoder:
        type = str | list[str]

        def decode(self, written: bytes) -> Any:
            decoded.append(len(written))
            return msgspec.json.decode(written, type=self.type)

    monkeypatch.setattr("whiten_serving.http.inputs._TEXTS", Decoder())
    answer = asked(app_with(token_ids="own"), "POST", "/v1/embeddings", {"input": [item] * 400_000})
    assert (answer.status, answer.json()["error"]["code"]) == (413, "too_many_texts")
    assert not decoded or item == []


ANY = msgspec.json.Decoder(dict[str, Any])
RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
ITEMS = msgspec.json.Decoder(list[str])
TEXTS = msgspec.json.Decoder(dict[str, list[str]])


def replaced(text: str) -> str:
    """Return a text with U+FFFD for each half of a pair, by another way than the server's."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_bodies_without_them_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from whiten_serving.http import inputs

    monkeypatch.setattr(inputs, "_repaired", lambda *_: pytest.fail("a body that is JSON was looked through"))
    body = b'{"a": ["a\\ud83d\\ude00", "\\\\ud83d"]}'
    assert parse_body(TEXTS, body) == {"a": ["a\U0001f600", "\\ud83d"]}


characters = st.integers(0, 0x10FFFF).map(chr) | st.sampled_from('\\"u\n/bd83\ud83d\ude00\ud800\udfff\ue000\ud7ff😀')


@st.composite
def escaped(draw: st.DrawFn) -> bytes:
    """Draw a string of JSON whose characters, halves of pairs among them, are escaped in drawn ways."""
    written = ""
    for character in draw(st.lists(characters, max_size=8)):
        units = character.encode("utf-16-be", "surrogatepass").hex()
        words = [units[place : place + 4] for place in range(0, len(units), 4)]
        ways = ["".join(f"\\u{word}" for word in words), "".join(f"\\u{word.upper()}" for word in words)]
        ways += [json.dumps(character)[1:-1]]
        if not "\ud800" <= character <= "\udfff":
            ways += [json.dumps(character, ensure_ascii=False)[1:-1]] * 2
        written += draw(st.sampled_from(ways))
    return f'"{written}"'.encode()


@given(st.lists(escaped(), max_size=4), st.lists(escaped(), max_size=2))
def test_texts_are_those_of_json_with_halves_replaced(texts: list[bytes], keys: list[bytes]) -> None:
    values = b"[%b]" % b", ".join(texts)
    body = b"{%b}" % b", ".join(b"%b: %b" % (key, values) for key in keys)
    wanted = {replaced(key): [replaced(text) for text in items] for key, items in json.loads(body).items()}
    for decoder in (TEXTS, ANY):
        assert parse_body(decoder, body) == parse_body(decoder, bytearray(body)) == wanted
    assert {key: ITEMS.decode(raw) for key, raw in parse_body(RAW, body).items()} == wanted
