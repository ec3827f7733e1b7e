"""Say what the server is: the description of its routes in OpenAPI 3.1, and the page for browsers."""

import re
from base64 import b64encode
from copy import deepcopy
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from typing import Any

import msgspec
from starlette.responses import Response

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
_SCRIPTS = ("api", "dom", "heat", "code", "try", "compare", "models", "now", "main")


def document(placed: list[tuple[str, Endpoint]], server: str, keys: bool) -> dict[str, Any]:
    """Return the description of routes, given with their paths below the server's address.

    Bodies follow from the types that decode them, errors from their table. openapi.json has the rest, for the first
    route of each handler: a summary, an example, the answer.
    """
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


def page() -> Response:
    """Return the page, which needs nothing from elsewhere and runs nothing that is not its own."""
    body, policy = _written()
    headers = {
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
        "vary": "accept",
    }
    return Response(body, headers=headers, media_type="text/html")


@cache
def _written() -> tuple[bytes, str]:
    """Return the page with its style and its script inside, and the policy that allows these two by their hashes."""
    folder = files(__package__) / "page"
    style = (folder / "page.css").read_text("utf-8")
    script = "\n".join((folder / f"{name}.js").read_text("utf-8") for name in _SCRIPTS)
    text = (folder / "index.html").read_text("utf-8").replace("{{style}}", style).replace("{{script}}", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return text.encode(), policy


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
