"""Answer HTTP requests: the ASGI application."""

import logging
import time
from http import HTTPStatus

from whiten_serving.http import access_log, openapi
from whiten_serving.http.body import check_declared
from whiten_serving.http.call import Call, Receive, Reply, Scope, Send
from whiten_serving.http.cors import Cors
from whiten_serving.http.encoding import json_of
from whiten_serving.http.errors import ApiError, ClientGoneError, Dialect
from whiten_serving.http.inputs import Inputs
from whiten_serving.http.keys import Keys
from whiten_serving.http.metrics import Metrics
from whiten_serving.http.models import Models
from whiten_serving.http.openapi_type import AnyJson
from whiten_serving.http.options import HttpOptions
from whiten_serving.http.routes import ROUTES, Route, Router
from whiten_serving.http.service import Service
from whiten_serving.http.state import State
from whiten_serving.http.tracing import make_span
from whiten_serving.http.workers import Workers

LOGGER = logging.getLogger("whiten.serving")

_ONE_PART = 65_536
"""Bytes of an answer that are sent as one part: copying them takes less time than to send them in several."""

GONE = 499
"""Status, in logs and metrics, of requests whose caller had gone before the answer."""


class App:
    """Serves models over HTTP, as an ASGI application.

    Args:
        models: what is served.
        options: keys, bounds and defaults.
        metrics: what is counted; None for new ones.
        state: whether it is ready; None for one that is.

    Raises:
        DataError: the file of token ids cannot be read.
    """

    def __init__(
        self,
        models: Models,
        options: HttpOptions | None = None,
        metrics: Metrics | None = None,
        state: State | None = None,
    ) -> None:
        self.models = models
        self.metrics = metrics or Metrics()
        self.state = state or State(ready=True)
        self.metrics.attach(models, self.state)
        self._ids, self._tokens = Workers("whiten-ids"), Workers("whiten-tokens")
        self._inputs: Inputs | None = None
        self.options = options or HttpOptions()
        self._span = make_span()
        itself = Route("GET", "/openapi.json", "openai", self._describe, "This description", AnyJson)
        self._routes = (*ROUTES, itself)
        self._router = Router(self._routes)

    @property
    def options(self) -> HttpOptions:
        """Return the options. Others may be set at any time, for later requests."""
        return self._options

    @options.setter
    def options(self, options: HttpOptions) -> None:
        self._inputs = Inputs(options, self._ids, self._inputs)
        self._options = options
        self._service = Service(self.models, options, self.metrics, self.state, self._inputs, self._tokens)
        self._keys = Keys(options.api_keys)
        self._cors = Cors(options.cors_origins)
        self._description: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or the server's notice that it starts and stops."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call.of(scope, receive)
        with self._span(call):
            try:
                reply = await self._answered(call)
            except ClientGoneError:
                call.status, reply = GONE, None
            finally:
                self.state.bodies.release(call)
            if reply is not None:
                call.status = reply.status
                await _send(send, call, reply, self._headers(call, reply))
        seconds = time.monotonic() - call.begun
        self.metrics.count(call, seconds)
        access_log.log(call, seconds, self.options.access_log)

    async def _answered(self, call: Call) -> Reply:
        """Return the answer to a request, or to its error."""
        route: Route | None = None
        try:
            if call.method == "OPTIONS":
                return self._choices(call)
            route = self._router.find(call)
            call.route = route.path
            self._admit(call, route)
            return await route.handler(self._service, call)
        except ApiError as error:
            return _refused(call, error, route.dialect if route else self._router.dialect(call))
        except ClientGoneError:
            raise
        except Exception as error:
            LOGGER.exception("request %s to %s failed", call.id, call.route)
            failure = ApiError("engine", f"the server failed ({type(error).__name__}); see its log")
            return _refused(call, failure, route.dialect if route else "openai")

    def _admit(self, call: Call, route: Route) -> None:
        """Check all that can be checked before the body is read.

        Raises:
            ApiError: the request is refused.
        """
        options = self.options
        call.check_headers(options.max_headers)
        if route.access == "key" or (route.access == "metrics" and options.metrics_need_key):
            self._keys.check(call.headers)
        call.set_deadline(options.timeout)
        if route.request is not None:
            self.state.bodies.check(check_declared(call.headers, options.max_body), options.max_waiting_body)
        if (route.computes or route.works) and not self.state.ready:
            code = "draining" if self.state.draining else "not_ready"
            raise ApiError(code, "the server is not ready; try again in a second")
        if route.computes:
            self._service.check_room()

    def _choices(self, call: Call) -> Reply:
        """Return the answer to OPTIONS."""
        methods = self._router.methods(call)
        if methods is None:
            raise ApiError("unknown_path", f"there is no {call.path[:80]!r} here; /openapi.json lists what there is")
        call.route = next(iter(methods.values())).path
        preflight = self._cors.preflight(call)
        return preflight or Reply(status=204, headers=((b"allow", self._router.allowed(methods).encode()),))

    def _headers(self, call: Call, reply: Reply) -> list[tuple[bytes, bytes]]:
        headers = [
            (b"x-request-id", call.id.encode("ascii")),
            *reply.headers,
            *call.answer_headers,
            *self._cors.headers(call),
        ]
        if self.state.draining and (b"connection", b"close") not in headers:
            headers.append((b"connection", b"close"))
        return headers

    async def _describe(self, service: Service, call: Call) -> Reply:
        """Answer GET /openapi.json."""
        if self._description is None:
            self._description = json_of(openapi.described(self._routes, bool(self.options.api_keys)))
        return Reply(self._description)


def _refused(call: Call, error: ApiError, dialect: Dialect) -> Reply:
    """Return the answer to a request that is refused or failed."""
    problem = error.problem
    call.code = error.code
    if error.code == "engine" and error.__cause__ is not None:
        LOGGER.error("request %s to %s failed", call.id, call.route, exc_info=error.__cause__)
    headers = (*problem.headers, *error.headers)
    if problem.close:
        headers = (*headers, (b"connection", b"close"))
    return Reply(json_of(error.body(dialect)), problem.status_in(dialect), headers=headers)


async def _send(send: Send, call: Call, reply: Reply, headers: list[tuple[bytes, bytes]]) -> None:
    parts = reply.parts
    size = sum(map(len, parts))
    if size <= _ONE_PART:
        parts = [b"".join(parts)]
    if reply.status != HTTPStatus.NO_CONTENT:
        headers.append((b"content-type", reply.content_type))
        headers.append((b"content-length", b"%d" % size))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if call.method == "HEAD":
        parts = [b""]
    for index, part in enumerate(parts, 1):
        await send({"type": "http.response.body", "body": part, "more_body": index < len(parts)})


async def _live(receive: Receive, send: Send) -> None:
    """Answer the server's notices that it starts and stops; models are opened and closed by whoever owns them."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
