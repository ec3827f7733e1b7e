"""Texts of which a static model knows no word: their vectors are zeros, which are told, or refused."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.asgi import FIELDS, Answer, asked
from support.cli import ok
from support.conformance import vectors_of
from whiten import Encoder
from whiten_serving import AsyncEncoder

pytestmark = pytest.mark.slow

UNKNOWN = "🙂🙂"
TEXTS = [UNKNOWN, "a", UNKNOWN, "b"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    import torch

    from support.published import save, static

    module, folder = static(), tmp_path_factory.mktemp("static")
    with torch.no_grad():
        module.embedding.weight[module.tokenizer.token_to_id("[UNK]")] = 0
    ok("export", save([module], folder / "model"), "--out", folder / "bundle")
    with Encoder(folder / "bundle") as opened:
        yield opened


def send(encoder: Encoder, path: str, body: object, **settings: Any) -> Answer:
    return asked(AsyncEncoder(encoder).asgi_app(**settings), "POST", path, body)


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.parametrize("more", [{}, {"normalize": True}])
def test_zeros_are_counted(encoder: Encoder, path: str, more: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    more = {} if path == "/api/embed" else more
    app = AsyncEncoder(encoder).asgi_app("s")
    with caplog.at_level("INFO", "whiten.access"):
        answer = asked(app, "POST", path, {FIELDS[path]: TEXTS, **more})
    assert answer.headers["x-whiten-zeros"] == "2"
    assert [index for index, row in enumerate(vectors_of(answer)) if not np.any(row)] == [0, 2]
    assert 'whiten_zeros_total{model="s"} 2.0' in asked(app, "GET", "/metrics").body.decode()
    assert "zeros=2" in caplog.text
    assert "x-whiten-zeros" not in asked(app, "POST", path, {FIELDS[path]: ["a", "b"], **more}).headers


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        *((path, {field: TEXTS}, f"{field}[0]") for path, field in FIELDS.items()),
        ("/v1/embeddings", {"input": ["a", "b", UNKNOWN], "precision": "binary"}, "input[2]"),
        ("/v1/embeddings", {"input": f"a {UNKNOWN}", "passages": [[0, 1], [2, 4]]}, "passages[1]"),
        ("/api/embeddings", {"prompt": UNKNOWN}, "prompt[0]"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", UNKNOWN]}}, "sentences[1]"),
        ("/similarity", {"inputs": {"source_sentence": UNKNOWN, "sentences": ["b"]}}, "source_sentence"),
    ],
)
def test_zeros_are_refused_where_the_operator_wants_that(
    encoder: Encoder, path: str, body: dict[str, Any], named: str
) -> None:
    assert send(encoder, path, body).headers["x-whiten-zeros"] in ("1", "2")
    refused = send(encoder, path, body, no_vector="error")
    error = refused.json()["error"]
    assert refused.status == (400 if path.startswith(("/v1", "/api")) else 422)
    assert (error if isinstance(error, str) else error["message"]).startswith(named)
    if isinstance(error, dict):
        assert (error["code"], error["param"]) == ("no_vector", named)


def test_vectors_of_numbers_are_not_refused(encoder: Encoder) -> None:
    assert send(encoder, "/embed", {"inputs": ["a", "b"]}, no_vector="error").status == 200
    assert send(encoder, "/api/embed", {"input": []}, no_vector="error").status == 200
