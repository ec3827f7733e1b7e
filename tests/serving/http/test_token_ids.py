"""Token ids in place of texts: refused, or taken for the bundle's own."""

from typing import Any

import msgspec
import pytest

from support.asgi import asked
from support.vectors import assert_near
from whiten import Encoder


def test_the_bundles_own_ids(app_with: Any, reference: Encoder) -> None:
    app = app_with(token_ids="own")
    ids = [one.id for one in reference.tokens("hello more")]
    answer = asked(app, "POST", "/embed", {"inputs": [ids, ids[1:-1]]})
    assert_near(answer.json(), reference.encode(["hello more"] * 2, normalize_embeddings=True))
    assert asked(app, "POST", "/embed", {"inputs": [10**6]}).status == 422
    assert asked(app, "POST", "/embed", {"inputs": [1] * 100_001}).status == 413


@pytest.mark.parametrize("ids", [[2**70], [-1], [[1], 2], ["a", 1], [[True]]])
def test_ids_of_no_text_are_refused(app_with: Any, ids: Any) -> None:
    answer = asked(app_with(token_ids="own"), "POST", "/v1/embeddings", {"input": ids})
    assert answer.status == 400
    assert answer.json()["error"]["param"] == "input"


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


@pytest.mark.parametrize("text", ['"' * 600_000, '\\"' * 300_000, ('", "' * 150_000)])
def test_quotes_within_a_text_are_no_texts(app_with: Any, text: str) -> None:
    answer = asked(app_with(), "POST", "/v1/embeddings", {"input": text})
    assert (answer.status, answer.headers["x-whiten-truncated"]) == (200, "1")
