"""Describe the routes in OpenAPI, from the same table and types that answer them."""

from collections.abc import Iterable
from typing import Any

import msgspec

from whiten_serving.http.about import version
from whiten_serving.http.dialects import ollama, openai, tei
from whiten_serving.http.errors import PROBLEMS
from whiten_serving.http.openapi_type import Text
from whiten_serving.http.routes import Route

_REFERENCE = "#/components/schemas/{name}"
_ERRORS = {"openai": openai.ErrorAnswer, "tei": tei.ErrorAnswer, "ollama": ollama.ErrorAnswer}


def described(routes: Iterable[Route], keys: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of routes.

    Args:
        routes: the routes.
        keys: whether requests need a key.
    """
    listed = list(routes)
    types = {id(one): one for route in listed for kind in (route.request, route.answer) for one in _types(kind)}
    ordered = [*types.values(), *_ERRORS.values()]
    found, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    schemas = {id(kind): schema for kind, schema in zip(ordered, found, strict=True)}
    paths: dict[str, Any] = {}
    for route in listed:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, keys)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "whiten",
            "version": version(),
            "summary": "Whitened sentence embeddings, by the routes of OpenAI, TEI and Ollama.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }
    if keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _operation(route: Route, schemas: dict[int, Any], keys: bool) -> dict[str, Any]:
    name = f"{route.method.lower()}{route.path}".replace("/", "_").replace("{", "").replace("}", "").rstrip("_")
    found: dict[str, Any] = {"operationId": name, "summary": route.summary, "tags": [route.dialect]}
    if "{" in route.path:
        value = route.path.partition("{")[2].partition("}")[0]
        found["parameters"] = [{"name": value, "in": "path", "required": True, "schema": {"type": "string"}}]
    if route.request is not None:
        found["requestBody"] = {"required": True, "content": _json(route.request, schemas)}
    error = _json(_ERRORS[route.dialect], schemas)
    answer = {"text/plain": {"schema": {"type": "string"}}} if route.answer is Text else _json(route.answer, schemas)
    statuses = {str(PROBLEMS[code].status_in(route.dialect)) for code in _codes(route, keys)}
    good = {} if route.refuses else {"200": {"description": route.summary, "content": answer}}
    found["responses"] = good | {status: {"description": "Error", "content": error} for status in sorted(statuses)}
    if keys and route.access == "key":
        found["security"] = [{"key": []}]
    return found


def _codes(route: Route, keys: bool) -> list[str]:
    """Return the codes of errors that a route can answer."""
    codes = ["invalid_api_key"] if keys and route.access == "key" else []
    if route.request is not None:
        codes += ["invalid_json", "empty_input", "body_too_large", "unsupported_encoding", "body_timeout", "dimensions"]
        codes.append("bodies_full")
    if route.request is not None or "{" in route.path:
        codes.append("model_not_found")
    if route.works:
        codes += ["threads_busy", "not_ready", "deadline", "engine"]
    if route.computes:
        codes += ["queue_full", "not_ready", "deadline", "engine", "context_length_exceeded"]
    if route.path in ("/ready", "/health", "/ping"):
        codes.append("not_ready")
    if route.refuses:
        codes.append("wrong_model_kind")
    return codes or ["headers_too_large"]


def _types(kind: Any) -> tuple[Any, ...]:
    """Return the types that msgspec describes."""
    several = kind if isinstance(kind, tuple) else (kind,)
    return tuple(one for one in several if one not in (None, Text))


def _json(kind: Any, schemas: dict[int, Any]) -> dict[str, Any]:
    found = [schemas[id(one)] for one in _types(kind)]
    return {"application/json": {"schema": found[0] if len(found) == 1 else {"anyOf": found}}}
