"""Make the ASGI application: routes, errors, and what is logged and counted of each request."""

import logging
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus
from typing import Annotated, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from whiten_runtime.errors import UsageError
from whiten_serving.http import ollama, openai, tei
from whiten_serving.http.calls import Call, Guarded
from whiten_serving.http.errors import ApiError, ClientGoneError, draining, of_answer
from whiten_serving.http.logs import log_request
from whiten_serving.http.metrics import version
from whiten_serving.http.openapi import document
from whiten_serving.http.page import page
from whiten_serving.http.service import Endpoint, Service, answer, json_of
from whiten_serving.requests import OverloadedError

LOGGER = logging.getLogger("whiten.serving")
GONE = 499
"""Status, in logs and metrics, of requests whose caller had gone before the answer."""

HUNG = 60.0
"""Seconds after which /live says that the process cannot go on: while all models fail on every text, or while a batch
runs on that was to end."""

_EXPOSED = ("x-request-id", "x-whiten-truncated", "x-whiten-shape", "x-whiten-dtype", "retry-after", "retry-after-ms")


async def live(service: Service, request: Request, call: Call) -> Response:
    """Say that the process can go on; 503 asks for a restart."""
    scheduler = service.models.scheduler
    if (seconds := scheduler.stuck_seconds()) > HUNG:
        raise ApiError("hung", f"a batch has run on for {seconds:.0f} s after it was to end; restart the server")
    if (seconds := min(scheduler.failing_seconds(served.queue.runner) for served in service.models)) > HUNG:
        raise ApiError("failing", f"no text was computed for {seconds:.0f} s; restart the server")
    return PlainTextResponse("live\n")


async def ready(service: Service, request: Request, call: Call) -> Response:
    """Say whether requests are welcome: not while the server drains, or a model fails on every text."""
    name = request.path_params.get("model")
    if service.draining:
        raise draining("the server is about to stop")
    for served in service.models if name is None else [service.models.named(name)]:
        if served.is_failing():
            raise ApiError("failing", f"the model {served.name!r} fails on every text; see the server's log")
    return PlainTextResponse("ready\n")


async def metrics(service: Service, request: Request, call: Call) -> Response:
    """Show metrics for Prometheus."""
    return Response(service.metrics.page(), headers={"content-type": service.metrics.content_type})


async def about(service: Service, request: Request, call: Call) -> Response:
    """Say what is served.

    Browsers get a page, for which they need no key.
    """
    names = ", ".join(service.models.names)
    return PlainTextResponse(f"whiten {version()}: embeddings by {names}; options: /info, metrics: /metrics\n")


async def openapi(service: Service, request: Request, call: Call) -> Annotated[Response, dict[str, Any]]:
    """Describe these routes."""
    server = service.settings.root_path or request.scope.get("root_path") or "/"
    return answer(_document(server, bool(service.settings.api_keys)))


@lru_cache(16)
def _document(server: str, keys: bool) -> bytes:
    return json_of(document(all_paths(), server, keys))


TEI = (
    Endpoint("POST", "/embed", "tei", tei.embed),
    Endpoint("POST", "/", "tei", tei.root),
    Endpoint("POST", "/invocations", "tei", tei.root),
    Endpoint("POST", "/similarity", "tei", tei.similarity),
    Endpoint("POST", "/tokenize", "tei", tei.tokenize, queues=False),
    Endpoint("GET", "/info", "tei", tei.info),
    Endpoint("GET", "/health", "tei", ready, open=True),
    Endpoint("GET", "/ping", "tei", ready, open=True),
)
"""TEI's routes, which name no model; below /models/NAME they are there for each one."""

ENDPOINTS = (
    Endpoint("POST", "/v1/embeddings", "openai", openai.embeddings),
    *TEI,
    Endpoint("POST", "/embeddings", "openai", openai.embeddings),
    Endpoint("POST", "/openai/v1/embeddings", "openai", openai.embeddings),
    Endpoint("POST", "/openai/deployments/{deployment}/embeddings", "openai", openai.embeddings),
    Endpoint("GET", "/v1/models", "openai", openai.models),
    Endpoint("GET", "/models", "openai", openai.models),
    Endpoint("GET", "/v1/models/{id}", "openai", openai.model),
    Endpoint("GET", "/openai/v1/models", "openai", openai.models),
    Endpoint("POST", "/api/embed", "ollama", ollama.embed),
    Endpoint("POST", "/api/embeddings", "ollama", ollama.embeddings),
    Endpoint("GET", "/api/tags", "ollama", ollama.tags),
    Endpoint("GET", "/api/ps", "ollama", ollama.running),
    Endpoint("POST", "/api/show", "ollama", ollama.show, queues=False),
    Endpoint("GET", "/api/version", "ollama", ollama.about),
    Endpoint("GET", "/live", "openai", live, open=True),
    Endpoint("GET", "/ready", "openai", ready, open=True),
    Endpoint("GET", "/metrics", "openai", metrics),
    Endpoint("GET", "/openapi.json", "openai", openapi),
    Endpoint("GET", "/", "openai", about, page=True),
)
"""All routes."""

PROBES = ("/live", "/ready", "/metrics")
"""Paths at --metrics-listen."""


def all_paths() -> list[tuple[str, Endpoint]]:
    """Return the path of each endpoint with it."""
    below = sorted(TEI, key=lambda endpoint: endpoint.path == "/")  # a model's own path takes what others take too
    own = [(endpoint.path, endpoint) for endpoint in ENDPOINTS]
    return own + [(f"/models/{{model}}{endpoint.path}".rstrip("/"), endpoint) for endpoint in below]


def _places(names: Sequence[str], root: str) -> list[tuple[str, Endpoint, str | None]]:
    """Return the path of each route, its endpoint, and the model that the path names; also below a root path."""
    places: list[tuple[str, Endpoint, str | None]] = []
    for path, endpoint in all_paths():
        models: Sequence[str | None] = names if "{model}" in path else [None]
        places += [(path.replace("{model}", name or ""), endpoint, name) for name in models]
        if path == "/models/{model}":
            places += [(f"/models/{name}/", endpoint, name) for name in names]
    below = [(root + path, endpoint, name) for path, endpoint, name in places] if root else []
    return [*places, *below, *((root, endpoint, name) for path, endpoint, name in below if path == root + "/")]


def check_paths(names: Sequence[str], root: str) -> None:
    """Check that no model's own path, and no path below the root path, is another route."""
    places = _places(names, "")
    for path, endpoint, name in places:
        if name is not None:
            same = [other for other, also, _ in places if (other, also.method) == (path, endpoint.method)]
            if set("{}") & set(name) or len(same) > 1:
                raise UsageError(f"a model is called {name!r}, and its path {path!r} is another route; choose another")
    routes = [compile_path(_pattern(path))[0] for path, _, _ in places]
    for path in (root, *(root + path for path, _, _ in places)) if root else ():
        if any(route.match(path) for route in routes):
            raise UsageError(f"root_path is {root!r}, below which {path!r} would be two routes; choose another")


def make_app(service: Service) -> Starlette:
    """Return the application, which can be mounted in another one, of models and settings that `check_paths` passed."""
    places = _places(service.models.names, service.settings.root_path)
    routes = [
        Route(_pattern(path), EndpointApp(service, endpoint, model), methods=[endpoint.method])
        for path, endpoint, model in places
    ]
    middleware = []
    if service.settings.cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=service.settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            allow_private_network=True,
            expose_headers=_EXPOSED,
        )
        middleware.append(cors)

    async def not_found(request: Request, error: HTTPException) -> Response:
        call = Call.of(request.scope)
        response = _completed(service, call, _not_found(service, request, call, error, routes))
        _observe(service, call, request.method)
        return response

    middleware.append(Middleware(_Directory, routes=routes))
    handlers: dict[Any, Any] = {HTTPException: not_found}
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
    app.router.redirect_slashes = False  # a POST that is sent again loses its body in some clients
    app.state.service = service
    return app


def make_probes(service: Service) -> Starlette:
    """Return the application of --metrics-listen, which needs no key."""
    probes = [replace(endpoint, open=True, probe=True) for endpoint in ENDPOINTS if endpoint.path in PROBES]
    return Starlette(routes=[Route(probe.path, EndpointApp(service, probe, None), methods=["GET"]) for probe in probes])


class EndpointApp:
    """Answers the requests of one endpoint, turns what fails into answers, and logs and counts each request.

    It is an ASGI application of its own: Starlette's wrapping of functions costs each request 30 µs more.
    """

    def __init__(self, service: Service, endpoint: Endpoint, model: str | None) -> None:
        self._service, self._endpoint, self._model = service, endpoint, model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call.of(scope, self._endpoint.path, self._endpoint.dialect)
        if self._model is not None:
            scope["path_params"] = {"model": self._model}
        try:
            response = _completed(self._service, call, await self._response(scope, receive, call))
        except ClientGoneError:
            call.status = GONE
        else:
            await response(scope, receive, send)
        finally:
            self._service.budget.end(call)
        _observe(self._service, call, scope["method"])

    async def _response(self, scope: Scope, receive: Receive, call: Call) -> Response:
        service, endpoint = self._service, self._endpoint
        try:
            service.check_host(endpoint, call)
            if endpoint.page and service.settings.page and b"text/html" in call.headers.get(b"accept", b""):
                return page()
            service.admit(endpoint, call)
            with Guarded(call, receive) if endpoint.method == "POST" else nullcontext():
                return await endpoint.handler(service, Request(scope, receive), call)
        except ApiError as error:
            return _refused(call, error)
        except OverloadedError as error:
            return _refused(call, of_answer(error))
        except ClientGoneError:
            raise
        except Exception as error:
            failure = ApiError("engine", f"the server failed ({type(error).__name__}); see its log")
            failure.__cause__ = error
            return _refused(call, failure)


class _Directory:
    """Calls the endpoint of a path without parameters; Starlette's search would cost each request 60 µs more."""

    def __init__(self, app: ASGIApp, routes: Sequence[Route]) -> None:
        self._app = app
        self._endpoints = {(route.path, method): route.app for route in routes for method in route.methods or ()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = (scope.get("path", ""), scope.get("method", ""))  # neither is in the scope of a lifespan
        known = None if scope.get("root_path") else self._endpoints.get(place)
        await (known or self._app)(scope, receive, send)


def _pattern(path: str) -> str:
    return path.replace("}", ":path}")  # names of models have slashes


def _refused(call: Call, error: ApiError) -> Response:
    """Return the answer to a request that is refused or failed."""
    call.code = error.code
    if error.code == "engine" and error.__cause__ is not None:
        LOGGER.error("request %s to %s failed", call.id, call.route, exc_info=error.__cause__)
    body, status = json_of(error.body(call.dialect)), error.problem.status_in(call.dialect)
    return Response(body, status, error.headers, media_type="application/json")


def _not_found(
    service: Service, request: Request, call: Call, error: HTTPException, routes: Sequence[Route]
) -> Response:
    """Return the answer to a path that is not there, or not for the method of a request; it names the nearest one."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    parts = [part for part in path.split("/") if part][-6:]
    nearest = ("/" + "/".join(parts[start:]) for start in range(max(len(parts), 1)))
    there = [(one, route) for one in nearest for route in routes if route.path_regex.match(one)]
    call.dialect = "ollama" if "/api/" in (there[0][1].path if there else path) else "openai"
    if path.startswith("/models/"):
        call.dialect = "tei"
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allow = (error.headers or {})["Allow"]
        message = f"{path[:80]!r} is not for {request.method[:20]}; use {allow}"
        return _refused(call, ApiError("method_not_allowed", message, None, {"allow": allow}))
    hint = "the routes are those of OpenAI, TEI and Ollama"
    if path.startswith("/models/") and service.has_key(call):
        hint = f"the models served are {', '.join(service.models.names)}, each with the routes of TEI"
    elif there:
        hint = f"did you mean {min(there[0][1].methods)} {there[0][0][:80]!r}?"
    return _refused(call, ApiError("unknown_path", f"there is no {path[:80]!r} here; {hint}"))


def _completed(service: Service, call: Call, response: Response) -> Response:
    """Add what each answer has: the request's id, how many of its texts were cut, the end of the connection."""
    call.status, headers = response.status_code, response.raw_headers
    headers.append((b"x-request-id", call.id.encode("ascii")))
    if call.truncated:
        headers.append((b"x-whiten-truncated", b"%d" % call.truncated))
    if service.draining or _closes(call):
        headers.append((b"connection", b"close"))
    _describe_span(call)  # it ends with the answer
    return response


def _closes(call: Call) -> bool:
    """Return whether the connection ends with the answer to a request.

    It goes on behind a body that was refused while it came: closing at once would reset the connection, and many
    clients would lose the answer (RFC 9112, 9.6). It ends if the body may never come, or comes too slowly, and if the
    length of the body could be read in two ways (RFC 9112, 6.3).
    """
    if b"transfer-encoding" in call.headers and b"content-length" in call.headers:
        return True
    return call.code == "deadline" or (b"expect" in call.headers and not call.awaited)


def _observe(service: Service, call: Call, method: str) -> None:
    """Count and log a request that was answered, or whose caller has gone."""
    seconds = time.monotonic() - call.begun
    service.metrics.count(call.route, call.model, call.client, call.status, seconds)
    if call.status == HTTPStatus.OK and call.run_seconds:
        times = call.tokenize_seconds, call.queue_seconds, call.run_seconds
        service.metrics.count_texts(call.model, call.texts, call.tokens, call.truncated, times)
    log_request(call, method, seconds, service.settings.log)


def _describe_span(call: Call) -> None:
    """Add what a request was to the span of OpenTelemetry's ASGI instrumentation, if the process has one."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None and (span := trace.get_current_span()).is_recording():
        span.set_attribute("whiten.request_id", call.id)
        for name in ("model", "texts", "tokens", "queue_seconds", "run_seconds"):
            span.set_attribute(f"whiten.{name}", getattr(call, name))


def with_tracing(app: Any) -> Any:
    """Return the application in OpenTelemetry's instrumentation, where `opentelemetry-instrument` has set it up."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return app
    try:
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    except ImportError:
        LOGGER.warning("no spans: opentelemetry-instrumentation-asgi is not installed")
        return app
    return OpenTelemetryMiddleware(app, exclude_spans=["send", "receive"])
