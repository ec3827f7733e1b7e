"""Passages of one text on /v1/embeddings: vectors of `Encoder.encode_passages`, spans, and what is refused."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.asgi import asked
from support.bundles import copy_bundle
from support.conformance import vectors_of
from whiten import Encoder
from whiten_serving import AsyncEncoder
from whiten_serving.http.calls import Passes
from whiten_serving.requests import OverloadedError

TEXT = "One 🙂 sentence. Zwei Sätze, 日本語. The third one"
SPANS = [[0, 6], [6, 30], [3, 3], [0, len(TEXT)]]


@pytest.fixture
def encoder(golden: Path) -> Any:
    with Encoder(golden / "bundle-v1") as opened:
        yield opened


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"prompt": "query: "}, {"prompt": "query: "}),
        ({"normalize": True, "dimensions": 5}, {"normalize_embeddings": True, "truncate_dim": 5}),
        ({"precision": "uint8"}, {"precision": "uint8"}),
    ],
)
def test_vectors_and_spans(app: Any, encoder: Encoder, fields: dict[str, Any], options: dict[str, Any]) -> None:
    answer = asked(app, "POST", "/v1/embeddings", {"input": TEXT, "passages": SPANS, **fields})
    data = answer.json()["data"]
    assert [[one["start"], one["end"]] for one in data] == SPANS
    want = encoder.encode_passages(TEXT, SPANS, **options)
    assert np.abs(vectors_of(answer) - want.astype(float)).max() <= (1 if "precision" in fields else 1e-5)
    tokens = encoder.token_count(fields.get("prompt", "") + TEXT)
    assert answer.json()["usage"]["prompt_tokens"] == tokens


def test_one_passage_of_all_is_the_text(app: Any, encoder: Encoder) -> None:
    answer = asked(app, "POST", "/v1/embeddings", {"input": [TEXT], "passages": 1000})
    np.testing.assert_allclose(vectors_of(answer)[0], encoder.encode(TEXT), atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40])
def test_windows_have_so_many_tokens_and_cover_the_text(app: Any, encoder: Encoder, size: int) -> None:
    answer = asked(app, "POST", "/v1/embeddings", {"input": TEXT, "passages": size})
    spans = [(one["start"], one["end"]) for one in answer.json()["data"]]
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == len(TEXT)
    ends = [token.end for token in encoder.tokens(TEXT, special=False)]
    counts = [sum(start < end <= stop for end in ends) for start, stop in spans]
    assert sum(counts) == len(ends)
    assert all(size <= count <= size + 3 for count in counts[:-1])  # a character of several tokens is not torn
    np.testing.assert_allclose(vectors_of(answer), encoder.encode_passages(TEXT, spans), atol=1e-5)


@pytest.mark.parametrize(
    ("text", "fields", "name"),
    [
        (["a", "b"], {"passages": 2}, "input"),
        ("a", {"passages": [[0, 2]]}, "passages[0]"),
        ("a", {"passages": [[1, 0]]}, "passages[0]"),
        ("a", {"passages": [[0]]}, "passages[0]"),
        ("a", {"passages": 0}, "passages"),
        ("a", {"passages": "2"}, "passages"),
        ("a", {"passages": 2, "truncate": True}, "passages"),
        ("a", {"passages": 2, "truncate_prompt_tokens": 9}, "passages"),
        ("the " * 60, {"passages": 2}, "has 62 tokens"),
        ("the " * 600_000, {"passages": 2}, "input[0]"),
        ("the " * 3_000, {"passages": [[0, 3]]}, "has 3002 tokens"),
        ("a", {"passages": [[0, 1]] * 2049}, "2049"),
    ],
)
def test_what_is_refused(app: Any, text: Any, fields: dict[str, Any], name: str) -> None:
    answer = asked(app, "POST", "/v1/embeddings", {"input": text, **fields})
    assert answer.status == (413 if name == "2049" else 400)
    assert name in answer.json()["error"]["message"]


def test_a_model_that_pools_otherwise_says_so(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path, pooling="cls")
    with Encoder(bundle) as encoder:
        answer = asked(AsyncEncoder(encoder).asgi_app(), "POST", "/v1/embeddings", {"input": "a", "passages": 2})
    assert answer.status == 400
    assert "cls" in answer.json()["error"]["message"]
    assert str(tmp_path) not in answer.json()["error"]["message"]


def test_passes_take_turns_and_a_client_has_half_of_what_may_wait() -> None:
    order: list[str] = []
    go = threading.Event()

    async def run() -> None:
        passes = Passes(max_wait=3600.0)

        def call(client: str) -> Any:
            return SimpleNamespace(key=client, remaining=3600.0, queue_seconds=0.0, run_seconds=0.0)

        def start(client: str) -> "asyncio.Task[None]":
            def compute() -> None:
                go.wait(60)
                order.append(client)

            return asyncio.create_task(passes.run(call(client), 2000, compute))

        tasks = [start(client) for client in ("alice", "alice", "alice", "bob")]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await passes.run(call("carol"), 200_000, lambda: None)
        go.set()
        await asyncio.gather(*tasks)
        assert order.index("bob") <= 2

    asyncio.run(run())
