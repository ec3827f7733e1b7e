"""Bodies that are drawn: each is answered soon, and its strings are those of JSON; too many items are not decoded."""

import asyncio
import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.asgi import ask
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


bodies = st.builds(lambda value: json.dumps(value).encode(), objects | valid | values)


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """Draw a body of which some bytes are others."""
    body = bytearray(b'{"input": ["A text.", "b"], "dimensions": 3, "encoding_format": "float"}')
    for place in draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
        body[place] = draw(st.integers(0, 255))
    return bytes(body)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(POSTS), bodies | changed())
def test_bodies_of_all_kinds(app: Any, path: str, body: bytes) -> None:
    answer = asyncio.run(asyncio.wait_for(ask(app, "POST", path, body), 20))
    assert answer.status in STATUSES
    if answer.headers["content-type"] == "application/json":
        json.loads(answer.body)
    stats = app.state.service.models.get("tiny").queue.scheduler.stats()
    assert (stats.queue_tokens, stats.queue_requests) == (0, 0)


@pytest.mark.parametrize("item", ["ab", "a\\", [1]], ids=["texts", "backslashes", "ids"])
def test_many_tiny_items_take_no_more_memory_than_their_body(app_with: Any, item: object) -> None:
    app, body = app_with(token_ids="own"), json.dumps({"input": [item] * 400_000}).encode()
    tracemalloc.start()
    try:
        answer = asyncio.run(ask(app, "POST", EMBEDDINGS, body))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answer.status, answer.json()["error"]["code"]) == (413, "too_many_texts")
    assert peak < 4 * len(body)


@pytest.mark.parametrize("place", ["", "config"], ids=["body", "object"])
@pytest.mark.parametrize(("count", "status"), [(100, 200), (101, 400)])
def test_so_many_unknown_fields_are_taken(app_with: Any, place: str, count: int, status: int) -> None:
    """Each is compared with the names that could change a vector, which takes time."""
    fields = {f"field_{number}": 1 for number in range(count)}
    body = {"input": "a"} | ({place: fields} if place else fields)
    assert asyncio.run(ask(app_with(), "POST", EMBEDDINGS, json.dumps(body).encode())).status == status


ANY = msgspec.json.Decoder(dict[str, Any])
RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
ITEMS = msgspec.json.Decoder(list[str])
TEXTS = msgspec.json.Decoder(dict[str, list[str]])


def replaced(text: str) -> str:
    """Return a text with U+FFFD for each half of a pair, by another way than the server's."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
        assert parse_body(decoder, body) == parse_body(decoder, bytearray(body)) == (wanted, ())
    assert {key: ITEMS.decode(raw) for key, raw in parse_body(RAW, body)[0].items()} == wanted
