"""Hold what routes need, and compute the vectors that a request asks for."""

import asyncio
import hmac
import math
import re
import sys
import time
from binascii import b2a_base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from secrets import token_hex
from typing import Any, Literal, TypeVar

import msgspec
import orjson
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from whiten_runtime.bundle.records import Side, VectorPrecision
from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.inference.embedder import DOCUMENT, QUERY, Prompts
from whiten_serving.http.errors import ApiError, ClientGoneError, Dialect, of_answer, of_request
from whiten_serving.http.inputs import Inputs, parsed_body, read_body
from whiten_serving.http.metrics import Metrics
from whiten_serving.http.models import Models, ServedModel
from whiten_serving.scheduler import OverloadedError
from whiten_serving.settings import AppSettings

T = TypeVar("T")

Task = Literal["query", "document"]

PATIENCE = 0.2
"""Seconds that a request runs before anybody watches whether its caller has gone: most are answered before, and a
watcher costs a request more than its JSON."""

_AT_ONCE = 32_768
"""Numbers that are written as JSON before other requests have their turn: about a millisecond."""

_ID = re.compile(rb"[!-~]{1,128}")
"""Ids of requests that are taken over from the caller: they are logged and sent back, so only what is harmless."""

_PREFIX, _NUMBERS = token_hex(8), count(1)
"""Beginning and end of new ids. Random ones would ask the system, which gives the interpreter away to the lanes."""


@dataclass(slots=True)
class Call:
    """Holds what becomes known of one request on its way, for limits, logs and metrics."""

    headers: dict[bytes, bytes]  # by lower-case name
    id: str  # that of the header x-request-id, or a new one
    begun: float  # time of time.monotonic, as the deadline
    route: str
    dialect: Dialect  # of its errors
    deadline: float = math.inf
    model: str = ""
    texts: int = 0
    tokens: int = 0
    truncated: int = 0  # texts that were cut
    tokenize_seconds: float = 0.0
    queue_seconds: float = 0.0
    run_seconds: float = 0.0
    status: int = 0  # 499 where the caller has gone
    code: str | None = None  # of its error
    received: bool = False  # whether its body was read

    @classmethod
    def of(cls, scope: Scope, route: str = "unknown", dialect: Dialect = "openai") -> "Call":
        """Return the request of an ASGI scope."""
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        name = given.decode("ascii") if _ID.fullmatch(given) else f"{_PREFIX}-{next(_NUMBERS):x}"
        return cls(headers, name, time.monotonic(), route, dialect)

    @property
    def remaining(self) -> float:
        """Return the seconds until the deadline, less than 0 after it."""
        return self.deadline - time.monotonic()


@dataclass(slots=True, kw_only=True)
class Wanted:
    """Holds what a request asks for; None where it does not say it."""

    texts: list[str]
    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    task: Task | None = None  # what the texts are, from which the prompt follows
    truncate: bool | None = None
    side: Side | None = None  # side from which long texts are cut
    context: int | None = None  # number of tokens of a text that the caller reckons with
    precision: VectorPrecision = "float32"


@dataclass(frozen=True)
class Endpoint:
    """Describes a route."""

    method: Literal["GET", "POST"]
    path: str
    dialect: Dialect
    handler: "Callable[[Service, Request, Call], Awaitable[Response]]"
    open: bool = False  # whether it needs no key
    queues: bool = True  # whether a POST gives work to the scheduler, which must have room


class Service:
    """Holds what routes need."""

    def __init__(self, models: Models, settings: AppSettings) -> None:
        self.models = models
        self.settings = settings
        self.draining = False  # the process is about to stop: /ready says no, and answers close their connections
        self.metrics = Metrics(models, lambda: not self.draining)
        self.inputs = Inputs(settings)
        self._keys = [sha256(key.encode()).digest() for key in settings.api_keys]

    def admit(self, endpoint: Endpoint, call: Call) -> None:
        """Check all that can be checked before the body is read."""
        if self._keys and not endpoint.open:
            self._check_key(call.headers)
        timeout, given = self.settings.timeout, call.headers.get(b"x-timeout-ms")
        if given is not None:
            if not given.isdigit() or len(given) > 12:
                shown = given[:20].decode("latin-1")
                raise ApiError("invalid_header", f"x-timeout-ms is {shown!r}; wanted a whole number of milliseconds")
            timeout = min(timeout, int(given) / 1000)
        call.deadline = call.begun + timeout
        if endpoint.method == "POST" and endpoint.queues:
            try:
                self.models.scheduler.check_room()
            except OverloadedError as error:
                raise of_answer(error) from error

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        """Check `Authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`, in constant time."""
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        bearer = key.strip() if scheme.lower() == b"bearer" else b""
        given = bearer or headers.get(b"x-api-key") or headers.get(b"api-key")
        digest = sha256(given or b"").digest()
        if not sum([hmac.compare_digest(digest, known) for known in self._keys]):
            message = "the request's key is not one of this server; check it"
            if not given:
                message = "the request has no key; send the header 'Authorization: Bearer KEY'"
            raise ApiError("invalid_api_key", message, None, {"www-authenticate": "Bearer"})

    async def parsed(self, request: Request, call: Call, decoder: msgspec.json.Decoder[T]) -> T:
        """Return what the body of a request holds."""
        body = await read_body(request.receive, call.headers, self.settings.max_body)
        call.received = True
        return parsed_body(decoder, body)

    async def embed(self, call: Call, served: ServedModel, wanted: Wanted, normalize: bool) -> NDArray[Any]:
        """Return the vectors of a request's texts, [n, k], and tell the call what they cost."""
        call.model, call.texts = served.name, len(wanted.texts)
        if wanted.normalize is False and served.manifest.normalize:
            message = "normalize is false, but this model divides its vectors by their norm; leave it out"
            raise ApiError("unsupported_value", message, "normalize")
        asked = self.settings.normalize if wanted.normalize is None else wanted.normalize
        options = {
            **_prompt(served, wanted),
            "truncate_dim": wanted.dimensions,
            "normalize_embeddings": normalize if asked is None else asked,
            "truncate": self.settings.on_long == "truncate" if wanted.truncate is None else wanted.truncate,
            "precision": wanted.precision,
        }
        if call.remaining <= 0:
            raise ApiError("deadline", "the time of the request was over before it was computed; give it more")
        return await _computed(call, served, wanted, options)


async def _computed(call: Call, served: ServedModel, wanted: Wanted, options: dict[str, Any]) -> NDArray[Any]:
    begun = time.monotonic()
    try:
        request = await served.embeds.request(wanted.texts, **options)
    except WhitenError as error:
        raise of_request(error) from error
    request.deadline = call.deadline
    call.tokenize_seconds = time.monotonic() - begun
    call.tokens, call.truncated = request.tokens, request.texts.truncated
    if call.truncated and wanted.side not in (None, served.manifest.truncation_side):
        side = served.manifest.truncation_side
        message = f"a text is too long, and this model cuts texts on the {side}; send shorter texts, or leave it out"
        raise ApiError("unsupported_value", message, "truncation_direction")
    if wanted.context is not None and max(map(len, request.texts.ids), default=0) > wanted.context:
        message = f"a text has more than num_ctx, {wanted.context}, tokens; send shorter texts, or leave num_ctx out"
        raise ApiError("context_length_exceeded", message, "num_ctx")
    try:
        return await served.embeds.answer(request, timed=False)
    except Exception as error:
        raise of_answer(error) from error
    finally:
        if request.started:
            call.queue_seconds = request.started - request.submitted
            call.run_seconds = max(request.ended - request.started, 0.0)


def _prompt(served: ServedModel, wanted: Wanted) -> dict[str, str | None]:
    """Return which prompt a request asks for, by its name or by the task of its texts."""
    name, prompts = wanted.prompt_name, served.manifest.prompts
    if name is not None and name not in prompts:
        known = ", ".join(prompts) or "none"
        message = f"prompt_name is {name[:80]!r}; the prompts of this model are: {known}"
        raise ApiError("unsupported_value", message, "prompt_name")
    if wanted.task is None:
        return {"prompt_name": name, "prompt": None}
    route = served.manifest.route
    if route in ("query", "document") and route != wanted.task:
        message = f"this model holds the route {route} alone, not {wanted.task}"
        raise ApiError("unsupported_value", message, "input_type")
    try:
        prompt = Prompts.of(served.manifest).for_task(*(QUERY if wanted.task == "query" else DOCUMENT))
    except UsageError as error:
        raise ApiError("unsupported_value", str(error), "input_type") from None
    if name is not None and prompts[name] != prompt:
        message = f"prompt_name is {name[:80]!r}, but input_type is {wanted.task}, another prompt; leave one out"
        raise ApiError("unsupported_value", message, "prompt_name")
    return {"prompt_name": None, "prompt": prompt}


class Guarded:
    """Cancels a request at its deadline, and when its caller has gone, which ASGI tells to those who await `receive`.

    A quick request costs it a single timer.
    """

    def __init__(self, call: Call, receive: Receive) -> None:
        self._call, self._receive = call, receive
        self._why: Exception | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._before, self._loop = task, task.cancelling(), task.get_loop()
        self._timer = self._loop.call_later(min(PATIENCE, self._call.remaining), self._look)

    def _look(self) -> None:
        left = self._call.remaining
        if left <= 0:
            self._end(ApiError("deadline", "the time of the request was over; send fewer texts at once, or try later"))
            return
        if self._call.received and self._watcher is None:
            self._watcher = self._loop.create_task(self._watch())
        self._timer = self._loop.call_later(left if self._watcher else min(PATIENCE, left), self._look)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end(ClientGoneError())

    def _end(self, why: Exception) -> None:
        self._why = self._why or why
        self._task.cancel()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._why is not None and self._task.uncancel() <= self._before:  # else somebody else cancels it too
            raise self._why from None


def json_of(value: object) -> bytes:
    """Return a value as JSON; arrays of numpy are lists."""
    found: bytes = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return found


def answer(body: bytes) -> Response:
    """Return an answer of JSON."""
    return Response(body, media_type="application/json")


def base64_of(row: NDArray[Any]) -> str:
    """Return the bytes of a vector, little-endian, in base64."""
    if sys.byteorder == "big":
        row = row.astype(row.dtype.newbyteorder("<"))
    return b2a_base64(row.tobytes(), newline=False).decode("ascii")


async def rows_of(vectors: NDArray[Any], item: Callable[[int, NDArray[Any]], object] | None = None) -> bytes:
    """Return vectors as a JSON list; other requests have their turn while many are written."""
    step = max(_AT_ONCE // max(vectors.shape[1], 1), 1)
    parts: list[bytes] = []
    for start in range(0, len(vectors), step):
        if parts:
            await asyncio.sleep(0)
        some = vectors[start : start + step]
        items = some if item is None else [item(start + place, row) for place, row in enumerate(some)]
        parts.append(json_of(items)[1:-1])
    return b"[%s]" % b",".join(parts)
