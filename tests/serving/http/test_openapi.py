"""GET /openapi.json: bodies are those that are decoded, answers and errors are as described, clients can read it."""

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from support.asgi import ROUTES, asked
from whiten_serving.http import ollama
from whiten_serving.http.app import ENDPOINTS, all_paths

NAMES = {"model": "tiny", "deployment": "tiny", "id": "tiny"}
PLACES = [pytest.param(path, endpoint, id=f"{endpoint.method} {path}") for path, endpoint in all_paths()]
BODIES: dict[Any, Any] = {
    route.handler: ROUTES[route.path] for route in ENDPOINTS if route.path in ROUTES and route.method == "POST"
}
BODIES |= {ollama.show: {}, ollama.generate: {}}


@pytest.fixture
def described(app: Any) -> dict[str, Any]:
    answer = asked(app, "GET", "/openapi.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    return dict(answer.json())


def check(described: dict[str, Any], operation: dict[str, Any], answer: Any) -> None:
    """Check that an answer has the shape that an operation describes for its status."""
    content = operation["responses"][str(answer.status)]["content"]
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in content
    if kind == "application/json":
        schema = content[kind]["schema"] | {"components": described["components"]}
        Draft202012Validator(schema).validate(answer.json())


def test_every_route_is_described_once(described: dict[str, Any]) -> None:
    found = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert found == {(endpoint.method, path) for path, endpoint in all_paths()}
    operations = [one for methods in described["paths"].values() for one in methods.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    assert described["openapi"].startswith("3.1.")


def test_the_document_is_openapi(described: dict[str, Any]) -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="needs the extra test-all")
    validator.OpenAPIV31SpecValidator(described).validate()


@pytest.mark.parametrize(("path", "endpoint"), PLACES)
def test_answers_are_as_described(app: Any, described: dict[str, Any], path: str, endpoint: Any) -> None:
    operation = described["paths"][path][endpoint.method.lower()]
    assert operation["summary"]
    bodies = [BODIES[endpoint.handler]] if endpoint.method == "POST" else [None]
    for body in [*bodies, *examples(described, operation)]:
        answer = asked(app, endpoint.method, path.format(**NAMES), body)
        assert answer.status == 200, answer.body
        check(described, operation, answer)


def examples(described: dict[str, Any], operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a body for each example of a field, and check it against the schemas of the body."""
    if "requestBody" not in operation:
        return
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    for place in schema.get("anyOf", [schema]):
        kind = described["components"]["schemas"][place["$ref"].rpartition("/")[2]]
        for field, about in kind["properties"].items():
            for example in about.get("examples", ()):
                Draft202012Validator(schema | {"components": described["components"]}).validate({field: example})
                yield {field: example}


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/v1/embeddings", {}, {}, 400),
        ("/v1/embeddings", {"input": ["a"] * 5}, {}, 413),
        ("/v1/embeddings", {"input": "a"}, {"x-timeout-ms": "0"}, 504),
        ("/embed", {"inputs": 3}, {}, 422),
        ("/models/{model}/embed", {"inputs": ["a"] * 5}, {}, 413),
        ("/api/embed", {"input": 3}, {}, 400),
    ],
)
def test_errors_have_the_shape_and_the_code(
    app_with: Any, described: dict[str, Any], path: str, body: object, headers: dict[str, str], status: int
) -> None:
    answer = asked(app_with(max_texts=4), "POST", path.format(**NAMES), body, headers=headers)
    assert answer.status == status
    operation = described["paths"][path]["post"]
    check(described, operation, answer)
    error = answer.json()["error"]
    assert isinstance(error, str) or error["code"] in operation["responses"][str(status)]["description"]


def test_keys_and_the_path_in_front_are_described(app_with: Any) -> None:
    app = app_with(api_keys=("k",), root_path="/team")
    described = asked(app, "GET", "/openapi.json", headers={"x-api-key": "k"}).json()
    assert described["servers"] == [{"url": "/team"}]
    names = [name for one in described["security"] for name in one]
    assert set(names) == set(described["components"]["securitySchemes"])
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            needs_key = asked(app, method.upper(), path.format(**NAMES)).status == 401
            assert needs_key == (operation.get("security") is None), path
            assert not needs_key or "401" in operation["responses"], path
