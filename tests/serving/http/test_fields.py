"""Fields of other servers, halves of surrogate pairs and byte order marks in bodies."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.asgi import ROUTES, asked
from support.vectors import assert_near
from whiten import Encoder
from whiten_serving.http.app import ENDPOINTS
from whiten_serving.http.errors import ApiError
from whiten_serving.http.inputs import parse_body


def test_the_routes_are_all_that_take_texts() -> None:
    posts = [endpoint for endpoint in ENDPOINTS if endpoint.method == "POST" and endpoint.path != "/api/show"]
    assert {endpoint.handler for endpoint in posts if endpoint.path in ROUTES} == {each.handler for each in posts}


def message(answer: Any) -> str:
    error = answer.json()["error"]
    return error if isinstance(error, str) else error["message"]


def vectors(answer: Any) -> Any:
    found = answer.json()
    return {name: value for name, value in found.items() if name != "total_duration"} if type(found) is dict else found


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("field", "without_effect", "others"),
    [
        ("stream", False, [True, 0, "false", [], {}]),
        ("modality", "text", ["image", 1]),
        ("late_chunking", False, [True]),
        ("truncate_prompt_tokens", None, [8, -1]),
        ("priority", 0, [1, False, 0.5]),
        ("add_special_tokens", True, [1, "true"]),
    ],
)
def test_values_that_change_nothing(app: Any, path: str, field: str, without_effect: Any, others: list[Any]) -> None:
    plain = asked(app, "POST", path, ROUTES[path])
    assert plain.status == 200
    taken = asked(app, "POST", path, ROUTES[path] | {field: without_effect})
    assert (taken.status, vectors(taken)) == (200, vectors(plain))
    for other in others:
        refused = asked(app, "POST", path, ROUTES[path] | {field: other})
        assert refused.status in (400, 422), other
        assert field in message(refused)


def test_all_at_once_with_halves_of_pairs_and_a_mark(app: Any) -> None:
    fields = '"stream":false, "priority": 0 ,"add_special_tokens" : true, "modality":null,"late_chunking":false'
    body = f'\ufeff{{{fields}, "input": ["\\ud83d"]}}'.encode()
    found = asked(app, "POST", "/v1/embeddings", body)
    assert found.json()["data"] == asked(app, "POST", "/v1/embeddings", {"input": ["\ufffd"]}).json()["data"]


def test_special_tokens_are_left_out_where_tokens_are_asked_for(app: Any) -> None:
    with_them, without = (
        asked(app, "POST", "/tokenize", {"inputs": "a", "add_special_tokens": special}).json()[0]
        for special in (True, False)
    )
    assert len(with_them) > len(without) > 0
    assert "add_special_tokens" in message(asked(app, "POST", "/embed", {"inputs": "a", "add_special_tokens": False}))


@pytest.mark.parametrize("field", ["strem", "task", "Stream", "stream "])
@pytest.mark.parametrize("path", ROUTES)
def test_fields_of_nobody_stay_refused(app: Any, path: str, field: str) -> None:
    for value in (None, False):
        answer = asked(app, "POST", path, ROUTES[path] | {field: value, "stream": False})
        assert answer.status in (400, 422)
        assert f"'{field}'" in message(answer)


@pytest.mark.parametrize(("context", "status"), [(8192.0, 200), (8192, 200), (8.5, 400), (0.0, 400), (-1.0, 400)])
def test_the_context_of_ollama_may_be_written_as_a_float(app: Any, context: float, status: int) -> None:
    for path in ("/api/embed", "/api/embeddings"):
        answer = asked(app, "POST", path, ROUTES[path] | {"options": {"num_ctx": context, "seed": 1}, "stream": False})
        assert answer.status == status


ANY = msgspec.json.Decoder(dict[str, Any])
RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
ITEMS = msgspec.json.Decoder(list[str])
TEXTS = msgspec.json.Decoder(dict[str, list[str]])
HALVES = ["cut \\ud83d", "\\ude00\\ud83d", "\\ud83d\\ud83d\\ude00", "\\\\ud83d \\ud83d", "\\uD83D\\n", "a\\udc00b"]


def replaced(text: str) -> str:
    """Return a text with U+FFFD for each half of a pair, by another way than the server's."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@pytest.mark.parametrize("written", HALVES)
@pytest.mark.parametrize(
    ("path", "body", "vectors"),
    [
        ("/v1/embeddings", '{"input": ["ok", "%s"], "encoding_format": "float"}', lambda found: found["data"]),
        ("/v1/embeddings", '{"input": "%s", "metadata": {"%s": "%s"}}', lambda found: found["data"]),
        ("/embed", '{"inputs": ["ok", "%s"], "normalize": false}', None),
        ("/invocations", '{"inputs": "%s", "parameters": {"normalize": false}}', None),
        ("/api/embed", '{"input": ["%s"], "keep_alive": "%s"}', lambda found: found["embeddings"]),
        ("/api/embeddings", '{"prompt": "%s"}', lambda found: [found["embedding"]]),
    ],
)
def test_each_dialect_embeds_what_the_library_embeds(
    app: Any, reference: Encoder, path: str, body: str, vectors: Any, written: str
) -> None:
    answer = asked(app, "POST", path, body.replace("%s", written).encode())
    assert answer.status == 200, answer.body
    found = vectors(answer.json()) if vectors else answer.json()
    last = found[-1]["embedding"] if path.startswith("/v1") else found[-1]
    assert_near(last, reference.encode(json.loads(f'"{written}"'), normalize_embeddings=path == "/api/embed"))


@pytest.mark.parametrize("written", HALVES)
def test_other_routes_read_them_too(app: Any, written: str) -> None:
    text = replaced(json.loads(f'"{written}"'))
    pair = f'{{"inputs": {{"source_sentence": "{written}", "sentences": ["{written}"]}}}}'.encode()
    for path in ("/similarity", "/"):
        assert asked(app, "POST", path, pair).json()[0] == pytest.approx(1)
    tokens = asked(app, "POST", "/tokenize", f'{{"inputs": "{written}"}}'.encode()).json()
    assert tokens == asked(app, "POST", "/tokenize", {"inputs": text}).json()
    unknown = asked(app, "POST", "/v1/embeddings", f'{{"input": "a", "x{written}": 1}}'.encode()).json()
    assert unknown["error"]["param"] == f"x{text}"


def test_a_byte_order_mark_is_skipped(app: Any, reference: Encoder) -> None:
    for body in (b'\xef\xbb\xbf{"inputs": "a"}', b'\xef\xbb\xbf \n{"inputs": "a"}'):
        assert_near(asked(app, "POST", "/embed", body).json()[0], reference.encode("a", normalize_embeddings=True))
    for body in (b'{"inputs": \xef\xbb\xbf"a"}', b'\xef\xbb\xbf\xef\xbb\xbf{"inputs": "a"}', b"\xef\xbb\xbf"):
        assert asked(app, "POST", "/embed", body).status == 422
    assert asked(app, "POST", "/embed", '{"inputs": "\ufeffa"}'.encode()).status == 200


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            b'{"a": ["\\ud83d", "\0\0"]}',
            b'{"a": ["\\ud83d", "\\ud8zz"]}',
            b'{"a": ["\\ud8"]}',
            b'{"a": ["\\ud83d\\udczz"]}',
            b'{"a": ["\\ud83d"',
        ),
        *(
            b'{"a": ["\\ud83d", "\xff"]}',
            b'{"a": ["\\ud83d\\x"]}',
            b'{"a": ["\xed\xa0\xbd"]}',
            b'{"a": ["\\ud83d\\"]}',
            b'{"a": ["\\ud83d", "\\u"]}',
            b"\\ud83d",
        ),
    ],
)
def test_what_is_no_json_stays_refused(wrong: bytes) -> None:
    for decoder in (ANY, TEXTS):
        with pytest.raises(ApiError) as caught:
            parse_body(decoder, wrong)
        assert caught.value.code == "invalid_json"


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
