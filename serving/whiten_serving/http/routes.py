"""List the routes, and find that of a request."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from whiten_serving.http.call import Call, Reply
from whiten_serving.http.dialects import info, ollama, openai, own, tei
from whiten_serving.http.errors import ApiError, Dialect
from whiten_serving.http.openapi_type import AnyJson, Text
from whiten_serving.http.service import Service

Access = Literal["key", "open", "metrics"]


@dataclass(frozen=True)
class Route:
    """Describes a route.

    Attributes:
        method: HTTP method.
        path: path, with names in braces for parts that stand for something; the last may hold slashes.
        dialect: dialect of its errors.
        handler: function that answers.
        summary: what it does.
        answer: type of the answer, or several.
        request: type of the body, or several; None for no body.
        access: whether it needs a key, if there are keys; that of /metrics is an option.
        works: whether it gives work to other threads, for which the server must be ready.
        computes: whether it gives work to the lanes, which must be ready and have room.
        refuses: whether it answers with an error alone.
    """

    method: Literal["GET", "POST"]
    path: str
    dialect: Dialect
    handler: Callable[[Service, Call], Awaitable[Reply]]
    summary: str
    answer: Any
    request: Any = None
    access: Access = "key"
    works: bool = False
    computes: bool = False
    refuses: bool = False


def _post(path: str, dialect: Dialect, handler: Any, summary: str, request: Any, answer: Any) -> Route:
    return Route("POST", path, dialect, handler, summary, answer, request, computes=True)


_VECTORS = "Vectors of texts"

ROUTES = (
    *(
        _post(path, "openai", openai.embeddings, _VECTORS, openai.EmbeddingsRequest, openai.EmbeddingsAnswer)
        for path in ("/v1/embeddings", "/embeddings", "/openai/deployments/{deployment}/embeddings")
    ),
    Route("GET", "/v1/models", "openai", openai.models, "The models", openai.ModelsAnswer),
    Route("GET", "/models", "openai", openai.models, "The models", openai.ModelsAnswer),
    Route("GET", "/v1/models/{id}", "openai", openai.model, "One model", openai.ModelAnswer),
    _post("/embed", "tei", tei.embed, _VECTORS, tei.EmbedRequest, tei.EmbedAnswer),
    *(
        _post(
            path,
            "tei",
            tei.root,
            "Vectors of texts, or cosines of one with others",
            (tei.EmbedRequest, tei.SimilarityRequest),
            (tei.EmbedAnswer, tei.SimilarityAnswer),
        )
        for path in ("/", "/invocations")
    ),
    _post(
        "/similarity",
        "tei",
        tei.similarity,
        "Cosines of one text with others",
        tei.SimilarityRequest,
        tei.SimilarityAnswer,
    ),
    Route(
        "POST", "/tokenize", "tei", tei.tokenize, "Tokens of texts", tei.TokenizeAnswer, tei.TokenizeRequest, works=True
    ),
    Route("POST", "/decode", "tei", tei.decode, "Texts of token ids", tei.DecodeAnswer, tei.DecodeRequest, works=True),
    *(
        Route("POST", path, "tei", tei.wrong_kind, "For models of another kind", tei.ErrorAnswer, AnyJson, refuses=True)
        for path in ("/embed_all", "/embed_sparse", "/predict", "/rerank")
    ),
    Route("GET", "/info", "tei", info.info, "What is served, and its options", AnyJson),
    Route("GET", "/health", "tei", own.ready, "Whether requests are welcome", Text, access="open"),
    Route("GET", "/ping", "tei", own.ready, "Whether requests are welcome", Text, access="open"),
    _post("/api/embed", "ollama", ollama.embed, _VECTORS, ollama.EmbedRequest, ollama.EmbedAnswer),
    _post(
        "/api/embeddings", "ollama", ollama.embeddings, "Vector of a text", ollama.PromptRequest, ollama.PromptAnswer
    ),
    Route("GET", "/api/tags", "ollama", ollama.tags, "The models", AnyJson),
    Route("GET", "/api/ps", "ollama", ollama.running, "The models", AnyJson),
    Route("POST", "/api/show", "ollama", ollama.show, "One model", AnyJson, ollama.ShowRequest),
    Route("GET", "/api/version", "ollama", ollama.about, "The version", ollama.VersionAnswer),
    Route("GET", "/live", "openai", own.live, "Whether the process runs", Text, access="open"),
    Route("GET", "/ready", "openai", own.ready, "Whether requests are welcome", Text, access="open"),
    Route("GET", "/metrics", "openai", own.metrics, "Metrics, for Prometheus", Text, access="metrics"),
    Route("GET", "/", "openai", own.about, "What this server is", Text),
)
"""All routes but /openapi.json, which describes them."""

MODEL_PREFIX = "/models/"
"""TEI's routes name no model; below this and a model's name they are there for each one."""

Methods = Mapping[str, Route]


class Router:
    """Finds the route of a request.

    Args:
        routes: the routes.
    """

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._fixed: dict[str, dict[str, Route]] = {}
        self._open: list[tuple[str, str, str, dict[str, Route]]] = []
        for route in routes:
            before, brace, rest = route.path.partition("{")
            if not brace:
                self._fixed.setdefault(route.path, {})[route.method] = route
            else:
                name, _, after = rest.partition("}")
                self._open.append((before, name, after, {route.method: route}))

    def find(self, call: Call) -> Route:
        """Return the route of a request, and tell the call the values in its path.

        Raises:
            ApiError: there is no such path, or it is not for this method.
        """
        methods = self.methods(call)
        if methods is None:
            message = f"there is no {call.path[:80]!r} here; /openapi.json lists what there is"
            raise ApiError("unknown_path", message)
        route = methods.get("GET" if call.method == "HEAD" else call.method)
        if route is None:
            allow = self.allowed(methods)
            message = f"{call.path[:80]!r} is not for {call.method[:20]}; use {allow}"
            raise ApiError("method_not_allowed", message, None, ((b"allow", allow.encode()),))
        return route

    def methods(self, call: Call) -> Methods | None:
        """Return the routes of a path by method; None if there is no such path."""
        return self._fixed.get(call.path) or self._valued(call)

    def dialect(self, call: Call) -> Dialect:
        """Return the dialect of errors about a path that is not there, or not for the method of a request."""
        methods = self.methods(call)
        if methods:
            return next(iter(methods.values())).dialect
        if call.path.startswith(MODEL_PREFIX):
            return "tei"
        return "ollama" if call.path.startswith("/api/") else "openai"

    @staticmethod
    def allowed(methods: Methods) -> str:
        """Return the methods of a path, as the header Allow lists them."""
        return ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])

    def _valued(self, call: Call) -> Methods | None:
        path = call.path
        for before, name, after, methods in self._open:
            value = path[len(before) : len(path) - len(after)]
            if value and path.startswith(before) and path.endswith(after) and len(path) > len(before) + len(after):
                call.values[name] = value
                return methods
        if path.startswith(MODEL_PREFIX):
            return self._of_model(call, path[len(MODEL_PREFIX) :])
        return self._fixed.get(path[:-1]) if len(path) > 2 and path.endswith("/") else None

    def _of_model(self, call: Call, rest: str) -> Methods | None:
        """Return TEI's route below a model's name, which is one part of the path or two, as in org/name."""
        name, slash, last = rest.rpartition("/")
        methods = self._fixed.get(f"/{last}") if slash and last else None
        if methods is None:
            name, methods = rest.rstrip("/"), self._fixed["/"]
        found = {method: route for method, route in methods.items() if route.dialect == "tei"}
        if not found or not all(name.split("/")):
            return None
        call.values["model"] = name
        return found
