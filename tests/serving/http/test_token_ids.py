"""Token ids in place of texts: refused, taken for the bundle's own, or decoded by tiktoken's file."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.asgi import asked
from support.vectors import assert_near
from whiten import Encoder
from whiten_runtime.errors import DataError
from whiten_serving import AsyncEncoder

TOKENS = [*(bytes([number]) for number in range(256)), b"A ", b"text", " Käse".encode()]
"""A vocabulary as tiktoken's: all bytes, and some longer tokens."""


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in tiktoken's format."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "small.tiktoken"
    file.write_bytes(b"".join(b"%s %d\n" % (b64encode(token), rank) for rank, token in enumerate(TOKENS)))
    return file


def test_they_are_decoded_by_tiktokens_file(app_with: Any, reference: Encoder, ranks: Path) -> None:
    pytest.importorskip("tiktoken")
    app = app_with(token_ids=f"cl100k={ranks}")
    ids = [256, 257, 258, ord(".")]
    for given in ([ids], [ids, ids]):
        answer = asked(app, "POST", "/v1/embeddings", {"input": given})
        assert answer.status == 200, answer.body
        assert_near(
            [one["embedding"] for one in answer.json()["data"]], reference.encode(["A text Käse."] * len(given))
        )
    cut = [0xA4, *b"text", 0xC3]  # clients cut long texts between tokens, which may be within a character
    found = asked(app, "POST", "/v1/embeddings", {"input": cut}).json()["data"][0]["embedding"]
    assert_near(found, reference.encode("text"))
    assert asked(app, "POST", "/v1/embeddings", {"input": "A text Käse."}).status == 200


@pytest.mark.parametrize("ids", [[999_999], [2**70], [-1], [ord("a"), 0xC3, ord("b")], [[1], 2], ["a", 1], [[True]]])
def test_ids_of_no_text_are_refused(app_with: Any, ranks: Path, ids: Any) -> None:
    pytest.importorskip("tiktoken")
    answer = asked(app_with(token_ids=f"cl100k={ranks}"), "POST", "/v1/embeddings", {"input": ids})
    assert answer.status == 400
    assert answer.json()["error"]["param"] == "input"


def test_a_file_that_changed_is_read_anew(served: AsyncEncoder, ranks: Path) -> None:
    pytest.importorskip("tiktoken")
    served.asgi_app(token_ids=f"cl100k={ranks}")
    ranks.write_bytes(b"".join(b"%s %d\n" % (b64encode(token), rank) for rank, token in enumerate(TOKENS[:256])))
    app = served.asgi_app(token_ids=f"cl100k={ranks}")
    assert asked(app, "POST", "/v1/embeddings", {"input": [256]}).status == 400


@pytest.mark.parametrize("content", [b"", b"no base64\n", b"YQ==\n", None])
def test_files_that_cannot_be_used(served: AsyncEncoder, tmp_path: Path, content: bytes | None) -> None:
    pytest.importorskip("tiktoken")
    file = tmp_path / "ranks"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match="ranks"):
        served.asgi_app(token_ids=f"cl100k={file}")


def test_the_bundles_own_ids(app_with: Any, reference: Encoder) -> None:
    app = app_with(token_ids="own")
    ids = [one.id for one in reference.tokens("hello more")]
    answer = asked(app, "POST", "/embed", {"inputs": [ids, ids[1:-1]]})
    assert_near(answer.json(), reference.encode(["hello more"] * 2, normalize_embeddings=True))
    assert asked(app, "POST", "/embed", {"inputs": [10**6]}).status == 422
    assert asked(app, "POST", "/embed", {"inputs": [1] * 100_001}).status == 413


@pytest.mark.parametrize("item", ["ab", "", "a\\", []], ids=["texts", "empty", "backslashes", "ids"])
def test_many_tiny_items_are_counted_before_they_are_decoded(
    app_with: Any, monkeypatch: pytest.MonkeyPatch, item: object
) -> None:
    decoded: list[int] = []

    class Decoder:
        def decode(self, written: bytes) -> Any:
            decoded.append(len(written))
            return msgspec.json.decode(written, type=str | list[str])

    monkeypatch.setattr("whiten_serving.http.inputs._TEXTS", Decoder())
    answer = asked(app_with(token_ids="own"), "POST", "/v1/embeddings", {"input": [item] * 400_000})
    assert (answer.status, answer.json()["error"]["code"]) == (413, "too_many_texts")
    assert not decoded or item == []


@pytest.mark.parametrize("text", ['"' * 600_000, '\\"' * 300_000, ('", "' * 150_000)])
def test_quotes_within_a_text_are_no_texts(app_with: Any, text: str) -> None:
    answer = asked(app_with(), "POST", "/v1/embeddings", {"input": text})
    assert (answer.status, answer.headers["x-whiten-truncated"]) == (200, "1")
