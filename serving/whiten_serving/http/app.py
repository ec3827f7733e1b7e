"""Make the ASGI application: find the endpoint of a request, answer, and log and count what it was."""

import logging
import re
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from whiten_runtime.errors import UsageError
from whiten_serving.http import ollama, openai, tei
from whiten_serving.http.calls import Call, Guarded
from whiten_serving.http.documents import describe, page
from whiten_serving.http.errors import ApiError, ClientGoneError, draining, of_answer
from whiten_serving.http.metrics import log_request, version
from whiten_serving.http.service import Endpoint, Service, answer, json_of
from whiten_serving.requests import OverloadedError

LOGGER = logging.getLogger("whiten.serving")
GONE = 499
"""Status, in logs and metrics, of requests whose caller had gone before the answer."""

HUNG = 60.0
"""Seconds after which /live says that the process cannot go on: while all models fail on every text, or while a batch
runs on that was to end."""

_EXPOSED = (
    "x-request-id",
    "x-whiten-truncated",
    "x-whiten-zeros",
    "x-whiten-ignored",
    "x-whiten-shape",
    "x-whiten-dtype",
    "retry-after",
    "retry-after-ms",
)


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
    return json_of(describe(all_paths(), server, keys))


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
"""TEI's routes, which name no model."""

OF_MODEL = (*TEI, Endpoint("POST", "/v1/embeddings", "openai", openai.embeddings))
"""Routes that are below /models/NAME too, for each model: some clients of TEI ask for the last one there."""

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
    Endpoint("GET", "/openai/v1/models/{id}", "openai", openai.model),
    Endpoint("GET", "/openai/models", "openai", openai.models),
    Endpoint("GET", "/openai/models/{id}", "openai", openai.model),
    Endpoint("GET", "/openai/deployments", "openai", openai.models),
    Endpoint("POST", "/api/embed", "ollama", ollama.embed),
    Endpoint("POST", "/api/embeddings", "ollama", ollama.embeddings),
    Endpoint("POST", "/api/generate", "ollama", ollama.generate, queues=False),
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

_OTHER_TASKS = frozenset(
    (
        *("completions", "chat", "responses", "messages", "generate", "generate_stream", "rerank", "score", "predict"),
        *("classify", "pooling", "embed_sparse", "embed_all", "decode"),
    )
)
_CHANGES_OF_MODELS = frozenset(("pull", "push", "create", "copy", "delete"))
"""Last words of paths that servers of these dialects have and this one does not."""

PROBES = ("/live", "/ready", "/metrics")
"""Paths at --metrics-listen."""


def all_paths() -> list[tuple[str, Endpoint]]:
    """Return the path of each endpoint with it."""
    own = [(endpoint.path, endpoint) for endpoint in ENDPOINTS]
    return own + [(f"/models/{{model}}{endpoint.path}".rstrip("/"), endpoint) for endpoint in OF_MODEL]


Place = tuple[str, Endpoint, str | None]
"""Path, its endpoint, and the model that the path names."""


def _places(names: Sequence[str], root: str) -> list[Place]:
    """Return the places of all endpoints below a root path. The path "/" is there without its slash, too."""
    below: list[tuple[str, Sequence[Endpoint], str | None]] = [(root, ENDPOINTS, None)]
    below += [(f"{root}/models/{name}", OF_MODEL, name) for name in names]
    return [
        (front + path, endpoint, name)
        for front, endpoints, name in below
        for endpoint in endpoints
        for path in (("/", "") if endpoint.path == "/" else (endpoint.path,))
        if front + path
    ]


def _pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of a path, whose parameters may have slashes, as names of models do."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/].*)", re.escape(path)))


def check_paths(names: Sequence[str], root: str) -> None:
    """Check that no model's own path, and no path below the root path, is another route."""
    places = _places(names, "")
    for path, endpoint, name in places:
        if name is not None:
            same = [other for other, also, _ in places if (other, also.method) == (path, endpoint.method)]
            if set("{}") & set(name) or len(same) > 1:
                raise UsageError(f"a model is called {name!r}, and its path {path!r} is another route; choose another")
    patterns = [_pattern(path) for path, _, _ in places]
    for path, _, _ in _places(names, root) if root else ():
        if any(pattern.fullmatch(path) for pattern in patterns):
            raise UsageError(f"root_path is {root!r}, below which {path!r} would be two routes; choose another")


def make_app(service: Service) -> Starlette:
    """Return the application, which can be mounted in another one, of models and settings that `check_paths` passed."""
    names, root, origins = service.models.names, service.settings.root_path, service.settings.cors_origins
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=_EXPOSED,
    )
    places = _places(names, "") + (_places(names, root) if root else [])
    app = Starlette(middleware=[*([cors] if origins else []), Middleware(_Routes, service=service, places=places)])
    app.state.service = service
    return app


def make_probes(service: Service) -> Starlette:
    """Return the application of --metrics-listen, which needs no key."""
    probes = [replace(endpoint, open=True, probe=True) for endpoint in ENDPOINTS if endpoint.path in PROBES]
    places = [(probe.path, probe, None) for probe in probes]
    return Starlette(middleware=[Middleware(_Routes, service=service, places=places)])


class _Routes:
    """Finds the endpoint of each request, turns what fails into answers, and logs and counts the request.

    Starlette's routes would cost each request 90 µs more.
    """

    def __init__(self, app: ASGIApp, service: Service, places: Sequence[Place]) -> None:
        self._app, self._service = app, service
        probe = all(endpoint.probe for _, endpoint, _ in places)
        self._unknown = Endpoint("GET", "unknown", "openai", self._refuse_path, open=True, probe=probe), None
        self._paths: dict[str, dict[str, tuple[Endpoint, str | None]]] = {}
        for path, endpoint, model in places:
            for method in (endpoint.method, "HEAD") if endpoint.method == "GET" else (endpoint.method,):
                self._paths.setdefault(path, {})[method] = endpoint, model
        self._patterns = [(_pattern(path), methods) for path, methods in self._paths.items() if "{" in path]

    def _at(self, path: str) -> tuple[dict[str, tuple[Endpoint, str | None]], dict[str, str]]:
        """Return the endpoints of a path by their methods, and the parameters of the path."""
        if (methods := self._paths.get(path)) is not None:
            return methods, {}
        matches = ((pattern.fullmatch(path), methods) for pattern, methods in self._patterns)
        if place := next(((methods, match.groupdict()) for match, methods in matches if match), None):
            return place
        plain = re.sub("/+", "/", path).rstrip("/")  # clients add slashes
        return self._at(plain) if plain not in ("", path) else ({}, {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        methods, parameters = self._at(_path(scope))
        endpoint, model = methods.get(scope["method"], self._unknown)
        scope["path_params"] = parameters if model is None else {"model": model}
        call = Call.of(scope, endpoint.path, endpoint.dialect)
        service = self._service
        try:
            response = await self._response(scope, receive, endpoint, call)
            call.status = response.status_code
            response.raw_headers += _headers(service, call)
            _describe_span(call)  # it ends with the answer
            await response(scope, receive, send)
        except ClientGoneError:
            call.status = GONE
        finally:
            service.budget.end(call)
        seconds = time.monotonic() - call.begun
        service.metrics.count(call, seconds)
        log_request(call, scope["method"], seconds, service.settings.log)

    async def _response(self, scope: Scope, receive: Receive, endpoint: Endpoint, call: Call) -> Response:
        service = self._service
        try:
            service.check_host(endpoint, call)
            if endpoint.page and service.settings.page and b"text/html" in call.headers.get(b"accept", b""):
                return page()
            service.admit(endpoint, call)
            with Guarded(call, receive) if endpoint.method == "POST" else nullcontext():
                return await endpoint.handler(service, Request(scope, receive), call)
        except ClientGoneError:
            raise
        except ApiError as error:
            failure = error
        except OverloadedError as error:
            failure = of_answer(error)
        except Exception as error:
            failure = ApiError("engine", f"the server failed ({type(error).__name__}); see its log")
            failure.__cause__ = error
        if failure.code == "engine":
            LOGGER.error("request %s to %s failed", call.id, call.route, exc_info=failure.__cause__)
        call.code = failure.code
        body, status = json_of(failure.body(call.dialect)), failure.problem.status_in(call.dialect)
        return Response(body, status, failure.headers, media_type="application/json")

    async def _refuse_path(self, service: Service, request: Request, call: Call) -> Response:
        """Refuse a path that is not there, or not for the method of the request; name the nearest one."""
        path = _path(request.scope)
        parts = [part for part in path.split("/") if part][-6:]
        nearest = ("/" + "/".join(parts[start:]) for start in range(max(len(parts), 1)))
        near = next((one for one in nearest if self._at(one)[0]), None)
        of_model = path.startswith("/models/")
        call.dialect = "ollama" if "/api/" in (near or path) else "openai"
        if of_model and near != "/v1/embeddings":
            call.dialect = "tei"
        if methods := self._at(path)[0]:
            allow = ", ".join(sorted(methods))
            message = f"{path[:80]!r} is not for {request.method[:20]}; use {allow}"
            raise ApiError("method_not_allowed", message, None, {"allow": allow})
        hint, last = "the routes are those of OpenAI, TEI and Ollama", parts[-1] if parts else ""
        if last in _OTHER_TASKS:
            hint = "this server embeds only: POST '/v1/embeddings', '/embed' or '/api/embed'"
            if parts[-2:] == ["chat", "completions"]:
                hint += "; in LiteLLM, set `mode: embedding` for this model"
        elif last in _CHANGES_OF_MODELS:
            hint = "models are those that the server was started with"
        elif of_model and service.has_key(call):
            hint = f"the models served are {', '.join(service.models.names)}, each with the routes of TEI"
        elif near is not None:
            hint = f"did you mean {next(iter(self._at(near)[0]))} {near[:80]!r}?"
        raise ApiError("unknown_path", f"there is no {path[:80]!r} here; {hint}")


def _path(scope: Scope) -> str:
    """Return the path of a request below that of the application."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _headers(service: Service, call: Call) -> list[tuple[bytes, bytes]]:
    """Return what each answer has: the request's id, what became of its texts and fields, the end of the connection.

    The connection goes on behind a body that was refused while it came: closing at once would reset it, and many
    clients would lose the answer (RFC 9112, 9.6). It ends if the body may never come, or comes too slowly, and if the
    length of the body could be read in two ways (RFC 9112, 6.3).
    """
    headers = [(b"x-request-id", call.id.encode("ascii"))]
    if call.truncated:
        headers.append((b"x-whiten-truncated", b"%d" % call.truncated))
    if call.zeros:
        headers.append((b"x-whiten-zeros", b"%d" % call.zeros))
    if call.ignored:
        headers.append((b"x-whiten-ignored", _shown(call.ignored)))
    ambiguous = b"transfer-encoding" in call.headers and b"content-length" in call.headers
    missing = call.code == "deadline" or (b"expect" in call.headers and not call.awaited)
    if service.draining or ambiguous or missing:
        headers.append((b"connection", b"close"))
    return headers


def _shown(names: Sequence[str]) -> bytes:
    """Return names, which may be any texts, as the value of a header."""
    shown = ", ".join(re.sub(r"[^!-+./:-~-]", "?", name[:40]) for name in names[:10])
    return (shown + (", ..." if len(names) > 10 else "")).encode("ascii")


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
