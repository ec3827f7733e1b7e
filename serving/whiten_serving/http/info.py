"""Answer our own routes: probes, metrics, /info, and the description in OpenAPI."""

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from whiten_serving.http import ollama, openai, tei
from whiten_serving.http.errors import draining
from whiten_serving.http.metrics import version
from whiten_serving.http.models import ServedModel
from whiten_serving.http.service import Call, Endpoint, Service, answer, json_of

_REFERENCE = "#/components/schemas/{name}"
_ERRORS = {"openai": openai.ErrorAnswer, "tei": tei.ErrorAnswer, "ollama": ollama.ErrorAnswer}


async def live(service: Service, request: Request, call: Call) -> Response:
    return PlainTextResponse("live\n")


async def ready(service: Service, request: Request, call: Call) -> Response:
    if "model" in request.path_params:
        service.models.get(request.path_params["model"])
    if service.draining:
        raise draining("the server is about to stop")
    return PlainTextResponse("ready\n")


async def metrics(service: Service, request: Request, call: Call) -> Response:
    return Response(service.metrics.page(), headers={"content-type": service.metrics.content_type})


async def about(service: Service, request: Request, call: Call) -> Response:
    names = ", ".join(service.models.names)
    text = f"whiten {version()}: embeddings by {names}; routes: /openapi.json, options: /info, metrics: /metrics\n"
    return PlainTextResponse(text)


async def info(service: Service, request: Request, call: Call) -> Response:
    name = request.path_params.get("model") or request.query_params.get("model") or service.models.names[0]
    served = service.models.get(name)
    manifest, settings, scheduler = served.manifest, service.settings, service.models.scheduler
    described = {
        "model_id": served.name,
        "model_sha": served.digest,
        "model_dtype": {"fp32": "float32", "fp16": "float16"}.get(manifest.precision, manifest.precision),
        "model_type": {"embedding": {"pooling": manifest.pooling or "none"}},
        "max_concurrent_requests": scheduler.max_queue_tokens,  # each has a token at least while it waits
        "max_input_length": manifest.max_seq_length,
        "max_batch_tokens": scheduler.max_batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_texts,
        "auto_truncate": settings.on_long == "truncate",
        "tokenization_workers": scheduler.lanes,
        "version": version(),
        "sha": None,
        "docker_label": None,
        "whiten": {
            "models": list(service.models.names),
            "dimension": manifest.dimension,
            "space": served.encoder.space,
            "layers": list(manifest.layers),
            "whitening": manifest.whitening.description if manifest.whitening else "none",
            "similarity": manifest.similarity_fn_name,
            "prompts": list(manifest.prompts),
            "default_prompt_name": manifest.default_prompt_name,
            "normalize": _normalizes(service, served),
            "truncation_side": manifest.truncation_side,
            "providers": served.encoder.providers,
            "parity_cosine": served.parity,
            "lanes": scheduler.lanes,
            "max_queue_tokens": scheduler.max_queue_tokens,
            "max_wait": scheduler.max_wait,
            "options": settings.told(),
        },
    }
    return answer(json_of(described))


def _normalizes(service: Service, served: ServedModel) -> dict[str, bool]:
    """Return whether each route's vectors are divided by their norm, if a request does not say it."""
    asked, own = service.settings.normalize, served.manifest.normalize
    routes = {"/v1/embeddings": False, "/embed": True, "/api/embed": True, "/api/embeddings": False}
    return {route: own or (default if asked is None else asked) for route, default in routes.items()}


def openapi(endpoints: Iterable[Endpoint], keys: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of routes; `keys` says whether requests need one."""
    listed = list(endpoints)
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


def _operation(route: Endpoint, schemas: dict[int, Any], keys: bool) -> dict[str, Any]:
    name = f"{route.method.lower()}{route.path}".replace("/", "_").replace("{", "").replace("}", "").rstrip("_")
    found: dict[str, Any] = {"operationId": name, "summary": route.summary, "tags": [route.dialect]}
    if "{" in route.path:
        value = route.path.partition("{")[2].partition("}")[0]
        found["parameters"] = [{"name": value, "in": "path", "required": True, "schema": {"type": "string"}}]
    if route.request is not None:
        found["requestBody"] = {"required": True, "content": _json(route.request, schemas)}
    error = _json(_ERRORS[route.dialect], schemas)
    good = {"text/plain": {"schema": {"type": "string"}}} if route.answer is str else _json(route.answer, schemas)
    found["responses"] = {
        "200": {"description": route.summary, "content": good},
        "default": {"description": "Error", "content": error},
    }
    if keys and route.access == "key":
        found["security"] = [{"key": []}]
    return found


def _types(kind: Any) -> tuple[Any, ...]:
    """Return the types that msgspec describes."""
    several = kind if isinstance(kind, tuple) else (kind,)
    return tuple(one for one in several if one not in (None, str))


def _json(kind: Any, schemas: dict[int, Any]) -> dict[str, Any]:
    found = [schemas[id(one)] for one in _types(kind)]
    return {"application/json": {"schema": found[0] if len(found) == 1 else {"anyOf": found}}}
