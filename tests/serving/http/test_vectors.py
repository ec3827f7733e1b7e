"""The vectors of every route are those of the encoder, with their prompts, whatever a request and the operator say."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.asgi import asked
from support.bundles import copy_bundle
from support.vectors import assert_near, token_ids
from whiten import Encoder
from whiten_serving import AsyncEncoder

TEXTS = ["A first sentence.", "", "Ein zweiter Satz über Käse 🧀", "word " * 300]
RAW: dict[str, Any] = {}
UNIT = {"normalize_embeddings": True}

CASES: list[tuple[dict[str, Any], str, dict[str, Any], dict[str, Any]]] = [
    # options of the application, path, body, options of Encoder.encode
    ({}, "/v1/embeddings", {"input": TEXTS}, RAW),
    ({}, "/v1/embeddings", {"input": TEXTS[0]}, RAW),
    ({}, "/v1/embeddings", {"input": TEXTS, "dimensions": 5}, {"truncate_dim": 5}),
    ({}, "/v1/embeddings", {"input": TEXTS, "normalize": True}, UNIT),
    ({}, "/v1/embeddings", {"input": TEXTS[:3], "truncate": "START"}, RAW),
    ({"normalize": True}, "/v1/embeddings", {"input": TEXTS}, UNIT),
    ({"normalize": True}, "/v1/embeddings", {"input": TEXTS, "normalize": False}, RAW),
    ({"on_long": "error"}, "/v1/embeddings", {"input": TEXTS, "truncate": "END"}, RAW),
    ({}, "/embeddings", {"input": TEXTS, "model": "whatever"}, RAW),
    ({}, "/openai/deployments/any/embeddings", {"input": TEXTS}, RAW),
    ({}, "/embed", {"inputs": TEXTS}, UNIT),
    ({}, "/", {"inputs": TEXTS}, UNIT),
    ({}, "/invocations", {"inputs": TEXTS}, UNIT),
    ({}, "/models/tiny", {"inputs": TEXTS}, UNIT),
    ({}, "/models/tiny/", {"inputs": TEXTS}, UNIT),
    ({}, "/models/tiny/embed", {"inputs": TEXTS}, UNIT),
    ({}, "/embed", {"inputs": TEXTS[0]}, UNIT),
    ({}, "/embed", {"inputs": TEXTS, "normalize": False, "truncate": True}, RAW),
    ({}, "/embed", {"inputs": TEXTS, "parameters": {"normalize": False}}, RAW),
    ({}, "/embed", {"inputs": TEXTS, "dimensions": 7}, {"truncate_dim": 7, **UNIT}),
    ({}, "/embed", {"inputs": TEXTS[:3], "truncation_direction": "Left", "options": {"wait_for_model": True}}, UNIT),
    ({"normalize": False}, "/embed", {"inputs": TEXTS}, RAW),
    ({}, "/api/embed", {"input": TEXTS, "model": "tiny:latest", "keep_alive": "5m"}, UNIT),
    ({}, "/api/embed", {"input": TEXTS[0]}, UNIT),
    ({}, "/api/embed", {"input": TEXTS, "dimensions": 4}, {"truncate_dim": 4, **UNIT}),
    ({}, "/api/embed", {"input": TEXTS, "dimensions": 0}, UNIT),
    ({}, "/api/embed", {"input": TEXTS, "options": {"temperature": 0.1, "num_ctx": 4096, "unheard_of": None}}, UNIT),
    ({}, "/api/embeddings", {"prompt": TEXTS[0], "model": "tiny"}, RAW),
]


@pytest.mark.parametrize(("options", "path", "body", "wanted"), CASES)
def test_vectors(
    app_with: Any, reference: Encoder, options: Any, path: str, body: dict[str, Any], wanted: dict[str, Any]
) -> None:
    answer = asked(app_with(**options), "POST", path, body)
    assert answer.status == 200, answer.body
    given = next(body[field] for field in ("input", "inputs", "prompt") if field in body)
    texts = [given] if isinstance(given, str) else given
    assert_near(vectors_of(answer.json()), reference.encode(texts, **wanted))


def vectors_of(body: Any) -> Any:
    """Return the vectors of an answer of any dialect."""
    if isinstance(body, list):
        return body
    if "data" in body:
        return [one["embedding"] for one in body["data"]]
    return body["embeddings"] if "embeddings" in body else [body["embedding"]]


ROUTES = {"/v1/embeddings": "input", "/embed": "inputs", "/api/embed": "input", "/api/embeddings": "prompt"}


@pytest.mark.parametrize("normalize", [None, True, False])
def test_each_route_gives_the_norms_that_info_tells(app_with: Any, normalize: bool | None) -> None:
    app = app_with(normalize=normalize)
    told = asked(app, "GET", "/info").json()["whiten"]["normalize"]
    assert told.keys() == ROUTES.keys()
    for path, field in ROUTES.items():
        (vector,) = vectors_of(asked(app, "POST", path, {field: "A first sentence."}).json())
        assert (abs(np.linalg.norm(vector) - 1) < 1e-4) == told[path], path


PROMPTS = {"query": "query: find what answers ", "document": "passage: ", "around": 'Sum up "{text}" in one word:'}
SENTENCES = TEXTS[:3]
KINDS = {
    "query": "query",
    "search_query": "query",
    "document": "document",
    "passage": "document",
    "search_document": "document",
}


@dataclass
class Served:
    """An application, and what its vectors must be."""

    app: Any
    reference: Encoder

    def openai(self, **fields: Any) -> list[list[float]]:
        answer = asked(self.app, "POST", "/v1/embeddings", {"input": SENTENCES, **fields})
        assert answer.status == 200, answer.body
        return [one["embedding"] for one in answer.json()["data"]]

    def tei(self, path: str = "/embed", **fields: Any) -> list[Any]:
        answer = asked(self.app, "POST", path, {"inputs": SENTENCES, **fields})
        assert answer.status == 200, answer.body
        found: list[Any] = answer.json()
        return found


@pytest.fixture(scope="module")
def prompted(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A bundle whose default prompt is that of documents."""
    folder = tmp_path_factory.mktemp("prompts")
    bundle = copy_bundle(golden / "bundle-v1", folder, prompts=PROMPTS, default_prompt_name="document")
    with Encoder(bundle) as reference:
        plain = reference.encode(SENTENCES, prompt="")
        for name in PROMPTS:  # else nothing below could fail
            assert np.abs(reference.encode(SENTENCES, prompt_name=name) - plain).max() > 0.01
        served = AsyncEncoder(bundle)
        yield Served(served.asgi_app("tiny"), reference)
        asyncio.run(served.close())
        served._queue.encoder.close()


@pytest.mark.parametrize("name", PROMPTS)
def test_openai_by_name(prompted: Served, name: str) -> None:
    assert_near(prompted.openai(prompt_name=name), prompted.reference.encode(SENTENCES, prompt_name=name))


@pytest.mark.parametrize("kind", KINDS)
def test_openai_by_input_type(prompted: Served, kind: str) -> None:
    found = prompted.openai(input_type=kind)
    assert_near(found, prompted.reference.encode(SENTENCES, prompt_name=KINDS[kind]))
    library = prompted.reference.encode_query if KINDS[kind] == "query" else prompted.reference.encode_document
    assert_near(found, library(SENTENCES))


def test_openai_counts_the_tokens_of_the_prompt(prompted: Served) -> None:
    answer = asked(prompted.app, "POST", "/v1/embeddings", {"input": SENTENCES, "prompt_name": "query"}).json()
    ids = token_ids(prompted.reference, SENTENCES, prompt_name="query")
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROMPTS)
def test_openai_takes_two_names_of_one_prompt_and_refuses_those_of_two(prompted: Served, name: str, kind: str) -> None:
    if KINDS[kind] == name:
        wanted = prompted.reference.encode(SENTENCES, prompt_name=name)
        assert_near(prompted.openai(prompt_name=name, input_type=kind), wanted)
        return
    answer = asked(
        prompted.app, "POST", "/v1/embeddings", {"input": SENTENCES, "prompt_name": name, "input_type": kind}
    )
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "unsupported_value", "prompt_name")
    assert f"prompt_name is '{name}', but input_type is {KINDS[kind]}" in error["message"]


@pytest.mark.parametrize("path", ["/embed", "/", "/invocations", "/models/tiny/embed"])
@pytest.mark.parametrize("name", PROMPTS)
def test_tei_by_name(prompted: Served, name: str, path: str) -> None:
    wanted = prompted.reference.encode(SENTENCES, prompt_name=name, normalize_embeddings=True)
    assert_near(prompted.tei(path, prompt_name=name), wanted)
    assert_near(prompted.tei(path, parameters={"prompt_name": name}), wanted)


@pytest.mark.parametrize("name", PROMPTS)
def test_cosines_are_those_of_the_texts_with_their_prompt(prompted: Served, name: str) -> None:
    body = {"inputs": {"source_sentence": SENTENCES[0], "sentences": SENTENCES}, "parameters": {"prompt_name": name}}
    answer = asked(prompted.app, "POST", "/similarity", body)
    vectors = prompted.reference.encode(SENTENCES, prompt_name=name, normalize_embeddings=True)
    np.testing.assert_allclose(answer.json(), vectors @ vectors[0], atol=1e-6)


@pytest.mark.parametrize("name", ["query", "document"])
def test_tokenize_shows_the_tokens_of_the_prompt(prompted: Served, name: str) -> None:
    answer = asked(prompted.app, "POST", "/tokenize", {"inputs": SENTENCES, "prompt_name": name})
    found = [[one["id"] for one in row] for row in answer.json()]
    assert found == token_ids(prompted.reference, SENTENCES, prompt_name=name)


def test_the_default_prompt_is_there_in_every_dialect(prompted: Served) -> None:
    raw = prompted.reference.encode(SENTENCES, prompt_name="document")
    unit = prompted.reference.encode(SENTENCES, prompt_name="document", normalize_embeddings=True)
    assert_near(prompted.openai(), raw)
    assert_near(prompted.tei(), unit)
    assert_near(asked(prompted.app, "POST", "/api/embed", {"input": SENTENCES}).json()["embeddings"], unit)
    older = asked(prompted.app, "POST", "/api/embeddings", {"prompt": SENTENCES[0]}).json()["embedding"]
    assert_near(older, raw[0])


@pytest.mark.parametrize(
    ("path", "field", "status"),
    [("/v1/embeddings", "input", 400), ("/embed", "inputs", 422), ("/api/embed", "input", 400)],
)
def test_a_prompt_that_is_not_there_is_refused_with_those_that_are(
    prompted: Served, path: str, field: str, status: int
) -> None:
    """Ollama has no field for prompts: it is refused by its name."""
    answer = asked(prompted.app, "POST", path, {field: SENTENCES, "prompt_name": "other"})
    assert answer.status == status
    message = answer.body.decode()
    assert "prompt_name" in message
    assert path == "/api/embed" or "query, document, around" in message
