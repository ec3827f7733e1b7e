"""Make the documents of a server: the page for browsers, and the description of the routes in OpenAPI 3.1.

The page needs nothing from elsewhere. The description follows the types and docstrings of handlers, and the table of
errors.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from inspect import getdoc
from typing import Any, get_type_hints

import msgspec
from starlette.responses import Response

from whiten_serving.http import openai
from whiten_serving.http.errors import ERROR_BODIES, PROBLEMS, Dialect
from whiten_serving.http.metrics import version
from whiten_serving.http.service import Endpoint

_TAGS = {
    "OpenAI": "Routes of OpenAI's clients.",
    "TEI": "Routes of text-embeddings-inference. Below /models/{model} they are there for each model.",
    "Ollama": "Routes of Ollama's clients.",
    "Server": "State of the server.",
}
_TAG_OF: dict[Dialect, str] = {"openai": "OpenAI", "tei": "TEI", "ollama": "Ollama"}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key"},
}
_TEXT = {"schema": {"type": "string"}}
_TRUNCATED = {"description": "Number of texts that were cut; absent if none was.", "schema": {"type": "integer"}}


def page() -> Response:
    """Return the page, and the policy that lets it run its own script only and ask its own server only."""
    body, headers = _page()
    return Response(body, headers=headers, media_type="text/html")


@cache
def _page() -> tuple[bytes, dict[str, str]]:
    folder = files(__package__) / "page"
    html, style, script = ((folder / name).read_text("utf-8") for name in ("index.html", "page.css", "page.js"))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    headers = {
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
        "vary": "accept",
    }
    return html.replace("{{style}}", style).replace("{{script}}", script).encode(), headers


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def describe(placed: list[tuple[str, Endpoint]], server: str, keys: bool) -> dict[str, Any]:
    """Return the description of routes, given with their paths below the server's address.

    A handler is annotated with its types, as in `Annotated[Request, EmbedRequest]` and `Annotated[Response, Info]`: one
    type or several, of which a body or an answer is one. An answer without a type is a text.
    """
    kinds = (
        (*types_of(endpoint, "request"), *types_of(endpoint, "return"), ERROR_BODIES[endpoint.dialect])
        for _, endpoint in placed
    )
    types = list(dict.fromkeys(kind for some in kinds for kind in some))
    places, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    for schema in components.values():
        schema.pop("additionalProperties", None)  # other fields are taken, if they change no vector
        for field in schema.get("properties", {}).values():
            field.pop("default", None)  # openapi-typescript wants a value for each field that has one
    paths: dict[str, dict[str, Any]] = {}
    schemas = dict(zip(types, places, strict=True))
    for path, endpoint in placed:
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(path, endpoint, schemas)
    summary = "Embeddings of texts, by the routes of OpenAI, text-embeddings-inference (TEI) and Ollama"
    licence = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "whiten", "version": version(), "summary": summary, "license": licence},
        "servers": [{"url": server}],
        "tags": [{"name": name, "description": description} for name, description in _TAGS.items()],
        "security": [{name: []} for name in _KEYS] if keys else [],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _KEYS},
    }


def types_of(endpoint: Endpoint, name: str) -> tuple[Any, ...]:
    """Return the types with which a handler's `request` or `return` is annotated."""
    types: tuple[Any, ...] = getattr(get_type_hints(endpoint.handler, include_extras=True)[name], "__metadata__", ())
    return types


def _operation(path: str, endpoint: Endpoint, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    summary, _, description = (getdoc(endpoint.handler) or "").partition("\n\n")
    names = re.findall(r"{(\w+)}", path)
    own = endpoint.dialect != "openai" or endpoint.handler.__module__ == openai.__name__
    answer: dict[str, Any] = {"description": HTTPStatus.OK.phrase, "content": {"text/plain": _TEXT}}
    if types := types_of(endpoint, "return"):
        answer["content"] = {"application/json": {"schema": _any_of(types, schemas)}}
    if endpoint.page:
        answer["content"] |= {"text/html": _TEXT}
    if endpoint.method == "POST" and endpoint.queues:
        answer["headers"] = {"x-whiten-truncated": _TRUNCATED}
    operation = {
        "tags": [_TAG_OF[endpoint.dialect] if own else "Server"],
        "summary": summary.rstrip("."),
        "operationId": re.sub(r"\W+", "_", endpoint.method.lower() + path).rstrip("_"),
        "responses": {"200": answer} | _refusals(endpoint, bool(names), schemas),
    }
    if description:
        operation["description"] = " ".join(description.split())
    if names:
        about = {"in": "path", "required": True, "description": "Name of a model.", "schema": {"type": "string"}}
        operation["parameters"] = [{"name": name} | about for name in names]
    if types := types_of(endpoint, "request"):
        content = {"application/json": {"schema": _any_of(types, schemas)}}
        operation["requestBody"] = {"required": True, "content": content}
    if endpoint.open:
        operation["security"] = []
    return operation


def _any_of(types: tuple[Any, ...], schemas: Mapping[Any, Any]) -> Any:
    places = [schemas[kind] for kind in types]
    return places[0] if len(places) == 1 else {"anyOf": places}


def _refusals(endpoint: Endpoint, names_model: bool, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the answers of a route that is refused or fails, by their statuses."""
    codes = set(PROBLEMS) - {"unknown_path", "method_not_allowed"}
    if endpoint.method == "GET":
        of_path, of_key = {"model_not_found"} if names_model else set(), set() if endpoint.open else {"invalid_api_key"}
        codes = {"invalid_header", "engine"} | of_path | of_key
    by_status: dict[int, list[str]] = {}
    for code, problem in PROBLEMS.items():
        if code in codes:
            by_status.setdefault(problem.status_in(endpoint.dialect), []).append(code)
    content = {"application/json": {"schema": schemas[ERROR_BODIES[endpoint.dialect]]}}
    return {
        str(status): {"description": f"{HTTPStatus(status).phrase}: {', '.join(some)}", "content": content}
        for status, some in sorted(by_status.items())
    }
