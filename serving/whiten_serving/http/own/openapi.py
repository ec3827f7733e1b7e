"""Describe all routes in OpenAPI 3.1: bodies by the types that decode them, errors by their table.

openapi.json has the rest, for the first route of each handler: a summary, an example, the answer.
"""

import re
from copy import deepcopy
from http import HTTPStatus
from importlib.resources import files
from typing import Any

import msgspec

from whiten_serving.http import ollama, openai, tei
from whiten_serving.http.errors import PROBLEMS, Dialect
from whiten_serving.http.metrics import version
from whiten_serving.http.service import Endpoint

BODIES: dict[object, tuple[type, ...]] = {
    openai.embeddings: (openai.EmbeddingsRequest,),
    tei.embed: (tei.EmbedRequest,),
    tei.root: (tei.EmbedRequest, tei.SimilarityRequest),
    tei.similarity: (tei.SimilarityRequest,),
    tei.tokenize: (tei.TokenizeRequest,),
    ollama.embed: (ollama.OllamaEmbedRequest,),
    ollama.embeddings: (ollama.OllamaPromptRequest,),
    ollama.show: (ollama.OllamaShowRequest,),
}
"""Types of the bodies that each handler takes."""

_ERRORS: dict[Dialect, str] = {"openai": "OpenAIError", "tei": "TEIError", "ollama": "OllamaError"}
_OF_ROUTING = {"unknown_path", "method_not_allowed"}


def document(placed: list[tuple[str, Endpoint]], server: str, keys: bool) -> dict[str, Any]:
    """Return the description of routes, given with their paths below the server's address."""
    described: dict[str, Any] = msgspec.json.decode((files(__package__) / "openapi.json").read_bytes())
    types = list(dict.fromkeys(one for some in BODIES.values() for one in some))
    places, schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    bodies = dict(zip(types, places, strict=True))
    for field in [field for schema in schemas.values() for field in schema.get("properties", {}).values()]:
        field.pop("default", None)  # openapi-typescript wants a value for each field that has one
    written = described["paths"]
    first = {endpoint.handler: endpoint.path for _, endpoint in reversed(placed)}
    paths: dict[str, dict[str, Any]] = {}
    for path, endpoint in placed:
        method = endpoint.method.lower()
        operation = deepcopy(written[endpoint.path if endpoint.path in written else first[endpoint.handler]][method])
        operation["operationId"] = re.sub(r"\W+", "_", method + path).rstrip("_")
        if endpoint.handler in BODIES:
            taken = [bodies[one] for one in BODIES[endpoint.handler]]
            body = operation["requestBody"]["content"]["application/json"]
            body["schema"] = taken[0] if len(taken) == 1 else {"anyOf": taken}
        if names := re.findall(r"{(\w+)}", path):
            about = {"in": "path", "required": True, "description": "Name of a model.", "schema": {"type": "string"}}
            operation["parameters"] = [{"name": name} | about for name in names]
        if endpoint.open:
            operation["security"] = []
        operation["responses"] |= _refusals(endpoint, bool(names))
        paths.setdefault(path, {})[method] = operation
    described |= {"servers": [{"url": server}], "paths": paths}
    described["info"]["version"] = version()
    described["components"]["schemas"] |= schemas
    described["components"]["schemas"]["ErrorCode"]["enum"] = list(PROBLEMS)
    if keys:
        described["security"] = [{name: []} for name in described["components"]["securitySchemes"]]
    return described


def _refusals(endpoint: Endpoint, names_model: bool) -> dict[str, Any]:
    """Return the answers of a route that is refused or fails, by their statuses."""
    codes = set(PROBLEMS) - _OF_ROUTING if endpoint.method == "POST" else {"invalid_header", "engine"}
    if endpoint.method == "GET":
        codes |= {"model_not_found"} if names_model else set()
        codes |= set() if endpoint.open else {"invalid_api_key"}
    by_status: dict[int, list[str]] = {}
    for code, problem in PROBLEMS.items():
        if code in codes:
            by_status.setdefault(problem.status_in(endpoint.dialect), []).append(code)
    schema = {"$ref": f"#/components/schemas/{_ERRORS[endpoint.dialect]}"}
    return {
        str(status): {
            "description": f"{HTTPStatus(status).phrase}: {', '.join(some)}",
            "content": {"application/json": {"schema": schema}},
        }
        for status, some in sorted(by_status.items())
    }
