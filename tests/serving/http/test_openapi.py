"""The description of the routes: valid, complete, and true of the answers."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from support.asgi import asked
from whiten_serving.http.app import ENDPOINTS


@pytest.fixture
def document(app: Any) -> dict[str, Any]:
    return asked(app, "GET", "/openapi.json").json()


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": document["components"]})


def answer_schema(document: dict[str, Any], method: str, path: str, status: str) -> dict[str, Any]:
    return document["paths"][path][method.lower()]["responses"][status]["content"]["application/json"]["schema"]


def test_every_route_is_there(document: dict[str, Any]) -> None:
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(route.method, route.path) for route in ENDPOINTS} | {("GET", "/openapi.json")}
    names = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))


def test_its_schemas_are_schemas(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [(), ("key",)])
def test_it_is_openapi(app_with: Any, keys: tuple[str, ...]) -> None:
    validate = pytest.importorskip("openapi_spec_validator", reason="needs the extra test-all").validate

    headers = {"api-key": "key"}
    validate(asked(app_with(api_keys=keys), "GET", "/openapi.json", headers=headers).json())


BODIES = [
    ("/v1/embeddings", {"input": ["a", "b"]}),
    ("/v1/embeddings", {"input": "a", "encoding_format": "base64", "dimensions": 3}),
    ("/v1/embeddings", {"input": "a", "precision": "binary", "user": "someone"}),
    ("/embed", {"inputs": "a", "normalize": False, "parameters": {"truncate": True}}),
    ("/", {"inputs": ["a"]}),
    ("/invocations", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ("/tokenize", {"inputs": ["a"]}),
    ("/api/embed", {"model": "tiny", "input": ["a"], "options": {"num_ctx": 100}}),
    ("/api/embeddings", {"model": "tiny", "prompt": "a"}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_requests_and_answers_are_as_described(app: Any, document: dict[str, Any], path: str, body: Any) -> None:
    request = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    resolved(document, request).validate(body)
    answer = asked(app, "POST", path, body)
    assert answer.status == 200
    resolved(document, answer_schema(document, "POST", path, "200")).validate(answer.json())


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/{id}", "/info", "/api/tags", "/api/version"])
def test_lists_are_as_described(app: Any, document: dict[str, Any], path: str) -> None:
    answer = asked(app, "GET", path.replace("{id}", "tiny"))
    resolved(document, answer_schema(document, "GET", path, "200")).validate(answer.json())


@pytest.mark.parametrize("path", [route.path for route in ENDPOINTS if route.request is not None])
@pytest.mark.parametrize("body", [b"", b"{}", b'{"input": [], "inputs": []}', b"[1]"])
def test_errors_are_as_described(app: Any, document: dict[str, Any], path: str, body: bytes) -> None:
    answer = asked(app, "POST", path.replace("{deployment}", "tiny"), body)
    if answer.status != 200:
        resolved(document, answer_schema(document, "POST", path, "default")).validate(answer.json())


def test_keys_are_described(app_with: Any) -> None:
    found = asked(app_with(api_keys=("key",)), "GET", "/openapi.json", headers={"api-key": "key"}).json()
    assert found["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert found["paths"]["/embed"]["post"]["security"] == [{"key": []}]
    assert "security" not in found["paths"]["/live"]["get"]
