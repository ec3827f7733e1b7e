"""Read tables of requests in JSON Lines, send their rows to an application, and check the answers.

The request of a row: `method` (POST if there is none), `path`, `headers`, and a `body`, which is sent as JSON; or
`fields`, which are added to that body, or else to that of the path in `support.asgi.ROUTES`; or `content`, which is
sent as it is, a text or a list of parts: at once, part by part (`chunked`), or part by part without end (`endless`).

Its answer: `status` (200 if there is none; or one of several) and `answer_headers` (null: none; a list: words within).
Of an error: `code`, where OpenAI's errors are due, or `error_type`, where TEI's are (null: Ollama's, which have none).
Of the body: `answer`, a subset of its JSON; `names`, whole words; `words`, other parts; `matches`, regular expressions;
`longest`, the most bytes; `as`, another request that is answered with the same JSON, or with this JSON `at` a place.

`encode` has arguments of `Encoder.encode`, whose vectors of the request's texts, or of `texts`, are the answer's. They
are divided by their norms on the routes on which TEI and Ollama do it, unless `encode` says otherwise. On the route
/similarity, their cosines with the first one are the answer; on /tokenize, it is the token ids with these arguments.

A word such as $LONG stands for a value of `WORDS`, or of `for`, where each value or combination of values makes a test.
{"repeat": [VALUE, N]}, {"numbered": [TEXT, N]} and {"base64": TEXT} stand for large or odd values.
"""

import asyncio
import json
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.asgi import ROUTES, Answer, asked
from support.vectors import assert_near, token_ids
from whiten import Encoder

TEXTS = ["A first sentence.", "", "Ein zweiter Satz über Käse 🧀", "word " * 300]
WORDS: dict[str, Any] = {
    "LONG": " ".join(["the"] * 60),  # of 62 tokens, of which the golden bundles read 48
    "CUT": " ".join(["the"] * 14),  # the first 16 tokens of it
    "TEXTS": TEXTS,
    "SHORT": TEXTS[:3],
    "ROUTES": list(ROUTES),
    "HALVES": [  # halves of surrogate pairs: as JSON has them, as Python reads them, as text that can be encoded
        ["cut \\ud83d", "cut \ud83d", "cut \ufffd"],
        ["\\ude00\\ud83d", "\ude00\ud83d", "\ufffd\ufffd"],
        ["\\ud83d\\ud83d\\ude00", "\ud83d😀", "\ufffd😀"],
        ["\\\\ud83d \\ud83d", "\\ud83d \ud83d", "\\ud83d \ufffd"],
        ["\\uD83D\\n", "\ud83d\n", "\ufffd\n"],
        ["a\\udc00b", "a\udc00b", "a\ufffdb"],
    ],
}
"""Words that stand for values in all rows."""

NAMES = {
    *("what", "for", "method", "path", "headers", "body", "fields", "content", "chunked", "endless", "status"),
    *(
        "answer_headers",
        "code",
        "error_type",
        "answer",
        "names",
        "words",
        "matches",
        "longest",
        "as",
        "encode",
        "texts",
    ),
    *("settings", "bundle", "models", "of"),  # of tests/serving/http/conformance.jsonl
    *("guarantee", "keys", "or_refused"),  # of tests/guarantees/requests.jsonl
}
"""Names that a row may have."""

_WORD = re.compile(r"\$([A-Z]+)")


class Row(Mapping[str, Any]):
    """A row of a table. Values are made when they are asked for, as some are large."""

    def __init__(self, values: dict[str, Any], words: dict[str, Any]) -> None:
        self._values, self._words = values, words

    def __getitem__(self, name: str) -> Any:
        return _fill(self._values[name], self._words)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{self._values}, { ({name: self._words[name] for name in self._words if name not in WORDS}) }"


def read_table(path: Path, **values: str) -> list[Any]:
    """Return the rows of a table that have some values, as parameters of a test."""
    parameters = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        row = json.loads(line)
        assert row.keys() <= NAMES, f"line {number} of {path}: unknown names {row.keys() - NAMES}"
        if all(row[name] == value for name, value in values.items()):
            for words in _combinations(row.pop("for", {})):
                body = json.dumps(row.get("body", row.get("fields", row.get("content", ""))))
                name = row.get("what") or f"{row['path']} {body[:60]}"
                parameters.append(pytest.param(Row(row, WORDS | words), id=f"{number} {name}"))
    return parameters


def _combinations(axes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return words with a value of each list; items of a list of several words have a value of each word."""
    lists = [WORDS[values.removeprefix("$")] if isinstance(values, str) else values for values in axes.values()]
    for values in product(*lists):
        words: dict[str, Any] = {}
        for names, value in zip(axes, values, strict=True):
            several = names.split()
            words |= zip(several, value if len(several) > 1 else [value], strict=True)
        yield words


def _fill(value: Any, words: dict[str, Any]) -> Any:
    """Return a value of a table with values in place of its words and expressions."""
    if isinstance(value, str):
        if word := _WORD.fullmatch(value):
            return _fill(words[word[1]], words)
        return _WORD.sub(lambda word: str(_fill(words[word[1]], words)), value)
    if isinstance(value, list):
        return [_fill(part, words) for part in value]
    if not isinstance(value, dict):
        return value
    fields = {_fill(name, words): _fill(part, words) for name, part in value.items()}
    match fields:
        case {"repeat": [part, count]}:
            return part * count
        case {"numbered": [text, count]}:
            return [text.replace("#", str(number)) for number in range(count)]
        case {"base64": text}:
            return b64decode(text)
    return fields


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def send(app: Callable[..., Any], row: Mapping[str, Any]) -> Answer:
    """Send the request of a row."""
    return asked(app, row.get("method", "POST"), row["path"], _body(row), headers=row.get("headers"))


def _body(row: Mapping[str, Any]) -> Any:
    if "fields" in row:
        return (row["body"] if "body" in row else ROUTES[row["path"]]) | row["fields"]
    if "content" not in row:
        return row.get("body")
    content = row["content"]
    parts = [part.encode() if isinstance(part, str) else part for part in _as_list(content)]
    return _stream(parts, "endless" in row) if "chunked" in row or "endless" in row else b"".join(parts)


async def _stream(parts: Sequence[bytes], endless: bool) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if endless:
        await asyncio.Event().wait()


def check(row: Mapping[str, Any], answer: Answer, encoder: Encoder, app: Callable[..., Any]) -> None:
    """Check that an answer is what a row says, of an application whose vectors are those of an encoder."""
    shown = answer.body.decode("utf-8", "backslashreplace").replace('": ', '":')
    assert answer.status in _as_list(row.get("status", 200)), shown[:2000]
    assert answer.headers.get("content-length", str(len(answer.body))) == str(len(answer.body))
    for name, value in row.get("answer_headers", {}).items():
        header = answer.headers.get(name)
        assert all(word in (header or "") for word in value) if isinstance(value, list) else header == value, name
    if answer.status >= 400 and "content-type" not in row.get("answer_headers", {}):
        shown += _message(row, answer)
    check_subset(row.get("answer", {}), answer.json() if "answer" in row else {})
    assert all(re.search(rf"\b{re.escape(name)}\b", shown) for name in row.get("names", ())), shown
    assert all(words in shown for words in row.get("words", ())), shown
    assert all(re.search(pattern, shown) for pattern in row.get("matches", ())), shown
    assert len(answer.body) <= row.get("longest", np.inf)
    if "as" in row:
        other = {name: row[name] for name in ("method", "path", "headers") if name in row} | row["as"]
        wanted = send(app, other).json()
        for place in other.get("at", ()):
            wanted = wanted[place]
        assert _timeless(answer.json()) == _timeless(wanted)
    if "encode" in row:
        check_vectors(row, answer, encoder)


def _message(row: Mapping[str, Any], answer: Answer) -> str:
    """Return the message of an error, and check that the error has the shape of its dialect."""
    body = answer.json()
    error = body["error"]
    message: str = error["message"] if isinstance(error, dict) else error
    assert "\n" not in message
    if isinstance(error, dict):
        assert (body.keys(), error.keys()) == ({"error"}, {"message", "type", "param", "code"})
        assert "error_type" not in row
        assert error["code"] == row.get("code", error["code"]), message
    else:
        assert body.keys() - {"error_type"} == {"error"}
        assert "code" not in row
        assert body.get("error_type") == row.get("error_type", body.get("error_type")), message
    again = answer.status in (408, 409, 429) or (answer.status >= 500 and answer.status != 504)
    assert ("x-should-retry" not in answer.headers) == again
    return message


def check_subset(part: Any, value: Any) -> None:
    """Check that JSON has all that a part of it has, which may leave out names of objects."""
    if isinstance(part, dict):
        for name, item in part.items():
            assert name in value, name
            check_subset(item, value[name])
    elif isinstance(part, list):
        assert len(value) == len(part), value
        for one, other in zip(part, value, strict=True):
            check_subset(one, other)
    else:
        assert (type(value), value) == (type(part), part)


def _timeless(body: Any) -> Any:
    return {name: part for name, part in body.items() if name != "total_duration"} if type(body) is dict else body


def check_vectors(row: Mapping[str, Any], answer: Answer, encoder: Encoder) -> None:
    """Check that an answer has the vectors of the row's texts, or their cosines with the first text, or token ids."""
    assert answer.status == 200, answer.body[:2000]
    path, body, arguments = row["path"], _body(row), row["encode"]
    texts = row["texts"] if "texts" in row else _texts(body)
    if path.endswith("/tokenize"):
        ids = [[token["id"] for token in tokens] for tokens in answer.json()]
        assert ids == token_ids(encoder, texts, **arguments)
        return
    wanted = encoder.encode(texts, **{"normalize_embeddings": not path.endswith("/embeddings")} | arguments)
    vectors = vectors_of(answer)
    if vectors.ndim == 1:
        np.testing.assert_allclose(vectors, wanted[1:] @ wanted[0], atol=1e-6)
    elif wanted.dtype == np.float32:
        assert_near(vectors, wanted)
    else:
        rounding = 1 if arguments["precision"].endswith("int8") else 0
        assert vectors.shape == wanted.shape
        assert np.abs(vectors.astype(int) - wanted).max() <= rounding
    if answer.headers["content-type"] == "application/octet-stream":
        assert vectors.dtype == wanted.dtype


def _texts(body: dict[str, Any]) -> list[str]:
    texts = next(body[name] for name in ("input", "inputs", "prompt") if name in body)
    if isinstance(texts, dict):
        return [texts["source_sentence"], *texts["sentences"]]
    return [texts] if isinstance(texts, str) else list(texts)


def vectors_of(answer: Answer) -> Any:
    """Return the vectors of an answer of any dialect and format."""
    if answer.headers["content-type"] == "application/octet-stream":
        shape = tuple(map(int, answer.headers["x-whiten-shape"].split(",")))
        return np.frombuffer(answer.body, answer.headers["x-whiten-dtype"]).reshape(shape)
    body = answer.json()
    if isinstance(body, list):
        return np.array(body)
    if "data" not in body:
        return np.array(body["embeddings"] if "embeddings" in body else [body["embedding"]])
    assert [item["index"] for item in body["data"]] == list(range(len(body["data"])))
    rows = [item["embedding"] for item in body["data"]]
    return np.array([np.frombuffer(b64decode(row), "<f4") if isinstance(row, str) else row for row in rows])
