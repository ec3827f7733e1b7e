"""Token ids of another tokenizer, turned back into text."""

import base64
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.asgi import asked, assert_near
from whiten_runtime import Encoder
from whiten_runtime.errors import DataError, UsageError
from whiten_serving.http.tiktoken_file import TiktokenFile

TOKENS = [
    *(bytes([value]) for value in range(256)),
    b"he",
    b"hell",
    b"hello",
    b" world",
    "Käse".encode(),
    "🧀".encode()[:2],
]
"""A small vocabulary: all bytes, as each file of tiktoken has them, and some longer tokens."""


def write(path: Path, tokens: list[bytes] = TOKENS) -> Path:
    path.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(one), rank) for rank, one in enumerate(tokens)))
    return path


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> TiktokenFile:
    return TiktokenFile(write(tmp_path_factory.mktemp("ranks") / "small.tiktoken"))


@given(st.text())
def test_bytes_give_the_text(ranks: TiktokenFile, text: str) -> None:
    assert ranks.decode(list(text.encode("utf-8", "replace"))) == text.encode("utf-8", "replace").decode()


def test_longer_tokens(ranks: TiktokenFile) -> None:
    assert ranks.decode([258, 259, 32, 260]) == "hello world Käse"
    assert ranks.decode([]) == ""
    assert len(ranks) == len(TOKENS)


@given(st.text(min_size=1), st.data())
def test_a_cut_within_a_character_loses_that_character_alone(ranks: TiktokenFile, text: str, data: Any) -> None:
    content = text.encode("utf-8", "replace")
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    wanted = content[start:end].decode("utf-8", "ignore")
    assert ranks.decode(list(content[start:end])) == wanted


@pytest.mark.parametrize("ids", [[len(TOKENS)], [-1], [100257], [2**70]])
def test_ids_that_are_none(ranks: TiktokenFile, ids: list[int]) -> None:
    with pytest.raises(UsageError, match="is not one of the"):
        ranks.decode(ids)


def test_bytes_that_are_no_text(ranks: TiktokenFile) -> None:
    with pytest.raises(UsageError, match="not UTF-8"):
        ranks.decode([97, 98, 255, 99, 100])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no token"),
        (b"aGU= 1 2\n", ":1: not a token"),
        (b"aGU= 1\n\xff\xff 2\n", ":2: not a token"),
        (b"aGU=\n", ":1: not a token"),
        (b"aGU= x\n", ":1: not a token"),
        (b"aGU= -1\n", ":1: not a token"),
        (b"aGU= 1\naGVs 1\n", ":2: id 1 is there twice"),
        (b"<html>\n", ":1: not a token"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words):
        TiktokenFile(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        TiktokenFile(tmp_path / "none")


@pytest.mark.slow
@given(st.text())
def test_tiktoken_itself_decodes_so(ranks: TiktokenFile, text: str) -> None:
    tiktoken = pytest.importorskip("tiktoken", reason="needs the extra test-all")

    encoding = tiktoken.Encoding(
        "small", pat_str=r"\S+|\s+", mergeable_ranks={one: rank for rank, one in enumerate(TOKENS)}, special_tokens={}
    )
    clean = text.encode("utf-8", "replace").decode()
    ids = encoding.encode(clean)
    assert ranks.decode(ids) == encoding.decode(ids) == clean


def test_requests_with_ids_get_the_vectors_of_their_text(app_with: Any, reference: Encoder, tmp_path: Path) -> None:
    app = app_with(token_ids="cl100k", token_file=write(tmp_path / "ranks"))
    wanted = reference.encode(["hello world", "Käse 🧀"])
    ids = [[258, 259], [260, *" 🧀".encode()]]
    found = asked(app, "POST", "/v1/embeddings", {"input": ids}).json()["data"]
    assert_near([one["embedding"] for one in found], wanted)
    one = asked(app, "POST", "/v1/embeddings", {"input": ids[0]}).json()["data"]
    assert_near([one[0]["embedding"]], wanted[:1])
    refused = asked(app, "POST", "/v1/embeddings", {"input": [[258], [9999]]})
    assert (refused.status, refused.json()["error"]["code"]) == (400, "token_ids")
    assert "input[1]" in refused.json()["error"]["message"]


def test_ids_of_the_bundles_own_tokenizer(app_with: Any, reference: Encoder) -> None:
    app = app_with(token_ids="own")
    texts = ["hello world", "some more of it"]
    with_specials = [reference.tokenized([text]).ids[0] for text in texts]
    bare = [row[1:-1] for row in with_specials]
    for ids in (with_specials, bare):
        found = asked(app, "POST", "/v1/embeddings", {"input": ids}).json()["data"]
        assert_near([one["embedding"] for one in found], reference.encode(texts))
    for bad in ([10**6], [-1], [bare[0][0], bare[0][0], 2, 3, 2], [2**80]):
        refused = asked(app, "POST", "/v1/embeddings", {"input": [bad]})
        assert refused.status == 400
        assert refused.json()["error"]["code"] in ("token_ids", "invalid_type")


def test_one_or_two_of_the_options_that_belong_together() -> None:
    from whiten_serving.http.options import HttpOptions

    for options in ({"token_ids": "cl100k"}, {"token_file": Path("x")}, {"token_ids": "own", "token_file": Path("x")}):
        with pytest.raises(UsageError, match="token_file"):
            HttpOptions.of(options)


def test_a_file_is_read_again_only_if_it_has_changed(tmp_path: Path) -> None:
    path = write(tmp_path / "ranks")
    first = TiktokenFile.opened(path)
    assert TiktokenFile.opened(path, first) is first
    assert TiktokenFile.opened(None, first) is None
    (tmp_path / "new").write_bytes(path.read_bytes())
    (tmp_path / "new").replace(path)
    assert TiktokenFile.opened(path, first) is not first
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        TiktokenFile.opened(path, first)
