"""Hold what routes need, and compute the vectors that a request asks for."""

import asyncio
import logging
import re
import sys
import time
from binascii import b2a_base64
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from whiten_runtime.bundle.manifest import Side, VectorPrecision
from whiten_runtime.errors import NoVectorError, Reason, TooLongError, UsageError, WhitenError
from whiten_runtime.inference.options import TASK_PROMPTS, TEXT, Prompts, Task, leading_width
from whiten_runtime.opened_bundle import stores_ranges
from whiten_serving.http.calls import Budget, Call, Passes
from whiten_serving.http.errors import ApiError, Dialect, of_answer, of_request, too_long
from whiten_serving.http.fields import letters_of
from whiten_serving.http.inputs import Inputs, memory_of_body, parse_body, read_body
from whiten_serving.http.metrics import Metrics
from whiten_serving.http.models import Models, ServedModel
from whiten_serving.requests import Request as QueuedRequest
from whiten_serving.settings import Settings

T = TypeVar("T")

_NUMBERS_PER_TURN = 32_768
"""Numbers that are written as JSON before other requests have their turn: about a millisecond."""


LOGGER = logging.getLogger("whiten.serving")

_ADDRESS = re.compile(r"[0-9]+(\.[0-9]+){3}|\[[0-9a-f:.]+\]")
"""Address in a header Host."""

_NOTES = 100
"""Facts about requests that the log tells once."""

_REPEATED = '%s: texts begin with the prompt that they get; where a client adds it, let it send the field prompt as ""'

_PROMPT = 4096
"""Characters of a prompt that a request may bring: each of its texts is tokenised with it."""

_ZEROS = Reason("has a vector of zeros, as this model knows no word of it", "leave it out")

_WIDEST = 4
"""Bytes of a character."""

_NUMBER = 17
"""Bytes that a number of an answer takes, about: 4 of the vector, 13 as JSON."""

_FREE = 65_536
"""Bytes of an answer up to which nobody waits for the client to take them."""

_JOINED = 1 << 20
"""Bytes of an answer up to which its parts are joined, which takes the event loop's thread."""

_TASKS: dict[str, Task] = {
    **dict.fromkeys(("query", "searchquery", "retrievalquery"), "query"),
    **dict.fromkeys(("document", "passage", "searchdocument", "retrievaldocument", "retrievalpassage"), "document"),
}
"""Tasks of texts, by the letters of the words that clients have for them."""


@dataclass(slots=True, kw_only=True)
class Wanted:
    """A request for vectors, whatever its dialect; None where it does not say it."""

    texts: list[str]
    dimensions: float | None = None  # a whole number; 0 is None
    normalize: bool | None = None
    prompt: str | None = None  # "" for none
    prompt_name: str | None = None  # "" for none
    input_type: str | None = None  # what the texts are, from which the prompt follows; or the name of a prompt
    truncate: bool | None = None
    side: Side | None = None  # side from which long texts are cut
    context: int | None = None  # number of tokens beyond which texts are cut, or refused
    field: str = "input"  # of the texts
    precision: VectorPrecision = "float32"


@dataclass(frozen=True)
class Endpoint:
    """A route."""

    method: Literal["GET", "POST"]
    path: str
    dialect: Dialect
    handler: "Callable[[Service, Request, Call], Awaitable[Response]]"
    open: bool = False  # whether it needs no key
    page: bool = False  # whether browsers get the page, which needs no key
    probe: bool = False  # whether it is one of --metrics-listen
    queues: bool = True  # whether a POST gives work to the scheduler, which must have room


class Service:
    """Holds what routes need."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self.models = models
        self.settings = settings
        self.hosts: frozenset[str] | None = None  # names by which the server may be asked; None for any
        self.probe_hosts: frozenset[str] | None = None  # the same at --metrics-listen
        self.draining = False  # the process is about to stop: /ready says no, and answers close their connections
        self.budget = Budget(settings.max_in_flight)
        self.metrics = Metrics(models, self.budget, lambda: not self.draining)
        self._notes: set[tuple[str, str]] = set()  # what the log has told
        self.inputs = Inputs(settings, models.scheduler.readers)
        self.passes = Passes(models.scheduler.max_wait)
        self.take_keys(settings.api_keys)

    def check_host(self, endpoint: Endpoint, call: Call) -> None:
        """Check that no page of a browser has given its own name our address (DNS rebinding).

        Such a name has a dot. Addresses and names of this network have none to fear, and checks of balancers no Host.
        """
        hosts = self.probe_hosts if endpoint.probe else self.hosts
        if hosts is None:
            return
        host = call.headers.get(b"host", b"").decode("latin-1").lower()
        name = re.sub(r":[0-9]*$", "", host)
        if "." in name and not _ADDRESS.fullmatch(name) and name not in hosts:
            message = f"the request is for the host {name[:80]!r}, which is no name of this server; add it to hosts"
            raise ApiError("unknown_host", message)

    def admit(self, endpoint: Endpoint, call: Call) -> None:
        """Check all that can be checked before the body is read."""
        if self._keys and not endpoint.open:
            self._check_key(call)
        timeout, asked = self.settings.timeout, call.headers.get(b"x-timeout-ms")
        if asked is not None:
            if not asked.isdigit() or len(asked) > 12:
                shown = asked[:20].decode("latin-1")
                raise ApiError("invalid_header", f"x-timeout-ms is {shown!r}; wanted a whole number of milliseconds")
            timeout = min(timeout, int(asked) / 1000)
        call.deadline = call.begun + timeout
        if endpoint.method == "POST":
            self.budget.begin(call)
            if endpoint.queues:
                self.models.scheduler.check_room((served.queue.runner for served in self.models), call.key)

    def take_keys(self, keys: tuple[str, ...] | dict[str, str]) -> None:
        """Take keys, which may have their clients' names, in place of those before; none lets everybody in."""
        named = keys if isinstance(keys, dict) else dict.fromkeys(keys, "")
        self._keys = {sha256(key.encode()).hexdigest(): name for key, name in named.items()}

    def has_key(self, call: Call) -> bool:
        """Return whether a request has a key, or needs none."""
        return not self._keys or sha256(_key(call.headers)).hexdigest() in self._keys

    def _check_key(self, call: Call) -> None:
        """Tell a call whose key it has. Hashes are compared: how long it takes tells nothing of a key."""
        key = _key(call.headers)
        digest = sha256(key).hexdigest()
        if digest not in self._keys:
            message = "the request's key is not one of this server; check it"
            if not key:
                message = "the request has no key; send the header 'Authorization: Bearer KEY'"
            raise ApiError("invalid_api_key", message, None, {"www-authenticate": "Bearer"})
        call.client = self._keys[digest]
        call.key = call.client or digest

    async def read(self, request: Request, call: Call, decoder: msgspec.json.Decoder[T]) -> T:
        """Return what the body of a request holds."""
        body = await read_body(
            request.receive, call, self.settings.max_body, lambda size: self.budget.reserve(call, 3 * size)
        )
        call.received = True
        if call.reserved:
            self.budget.reserve(call, await self.inputs.decode(call, len(body), memory_of_body, body))
        asked: T
        asked, call.ignored = await self.inputs.decode(call, len(body), parse_body, decoder, body, self.settings.strict)
        for name in call.ignored:
            self._note("requests have the field %r, which is ignored", name[:80])
        return asked

    def _note(self, message: str, name: str) -> None:
        """Log a message about a name once."""
        if (message, name) not in self._notes and len(self._notes) < _NOTES:
            self._notes.add((message, name))
            LOGGER.info(message, name)

    async def embed(self, call: Call, served: ServedModel, wanted: Wanted, normalize: bool) -> NDArray[Any]:
        """Return the vectors of a request's texts, [n, k], and tell the call what they cost."""
        options = self.options(call, served, wanted, normalize)
        options["truncate"] = self.settings.on_long == "truncate" if wanted.truncate is None else wanted.truncate
        self.reserve(call, served, len(wanted.texts), options)
        request = await _tokenized(call, served, wanted, options)
        vectors = await _computed(call, served, request, wanted.field)
        if request.vectors is not None:
            self.check_zeros(call, request.vectors[:, : options["truncate_dim"]], wanted.field, request.places)
        return vectors

    def options(self, call: Call, served: ServedModel, wanted: Wanted, normalize: bool) -> dict[str, Any]:
        """Return the options of `Encoder.encode` that a request asks for."""
        call.model, call.texts = served.name, len(wanted.texts)
        if wanted.normalize is False and served.manifest.normalize:
            message = "normalize is false, but this model divides its vectors by their norm; leave it out"
            raise ApiError("unsupported_value", message, "normalize")
        dimensions = None
        if wanted.dimensions:
            try:
                if wanted.dimensions % 1:
                    raise UsageError(f"dimensions is {wanted.dimensions}; wanted a whole number")
                dimensions = leading_width(served.manifest, int(wanted.dimensions), "dimensions")
            except UsageError as error:
                raise ApiError("dimensions", str(error), "dimensions") from None
        if wanted.precision in ("int8", "uint8") and not stores_ranges(served.encoder):
            message = f"precision is {wanted.precision}, but this model stores no ranges; ask for float32 or binary"
            raise ApiError("unsupported_value", message, "precision")
        asked = self.settings.normalize if wanted.normalize is None else wanted.normalize
        prompt = _prompt(served, wanted)
        if prompt and wanted.prompt is None and (beginning := _beginning(prompt)):
            call.repeated_prompts = sum(text.startswith(beginning) for text in wanted.texts)
        if call.repeated_prompts:
            self._note(_REPEATED, served.name)
        if call.remaining <= 0:
            raise ApiError("deadline", "the request timed out before it was computed; raise x-timeout-ms or --timeout")
        return {
            "prompt": prompt,
            "truncate_dim": dimensions,
            "normalize_embeddings": normalize if asked is None else asked,
            "precision": wanted.precision,
        }

    def normalizes(self, served: ServedModel, default: bool) -> bool:
        """Return whether vectors of a route are divided by their norm, if a request does not say it."""
        asked = self.settings.normalize
        return served.manifest.normalize or (default if asked is None else asked)

    def model_of(self, request: Request, name: str | None) -> ServedModel:
        """Return the model that the path of a request or its body names."""
        path: str | None = request.path_params.get("model")
        served = self.models.get(path or name)
        if path and name and self.models.get(name) is not served:
            message = f"the path names the model {path!r:.80}, and the body {name!r:.80}; leave one out"
            raise ApiError("unsupported_value", message)
        return served

    def reserve(self, call: Call, served: ServedModel, vectors: int, options: dict[str, Any]) -> None:
        """Reserve the memory of so many vectors, and of the prompt of each text."""
        numbers = options["truncate_dim"] or served.manifest.dimension
        self.budget.reserve(call, call.reserved + vectors * (numbers * _NUMBER + _WIDEST * len(options["prompt"])))

    def check_zeros(self, call: Call, vectors: NDArray[Any], field: str, places: Sequence[int] | None = None) -> None:
        """Count texts whose vectors are zeros, or refuse them; text i has the vector of `places[i]`."""
        if vectors[:, 0].all():  # nearly always, and ten times as fast
            return
        some: NDArray[np.bool_] = np.logical_or.reduce(vectors, axis=1)
        zeros = ~(some if places is None else some[places])
        call.zeros = int(zeros.sum())
        if call.zeros and self.settings.no_vector == "error":
            error = NoVectorError(dict.fromkeys(np.flatnonzero(zeros).tolist(), _ZEROS), field)
            raise ApiError("no_vector", str(error), f"{field}[{error.index}]") from error


def _key(headers: dict[bytes, bytes]) -> bytes:
    """Return the key of `Authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`; b"" without one."""
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    bearer = key.strip() if scheme.lower() == b"bearer" else b""
    return bearer or headers.get(b"x-api-key") or headers.get(b"api-key") or b""


async def _tokenized(call: Call, served: ServedModel, wanted: Wanted, options: dict[str, Any]) -> QueuedRequest:
    begun = time.monotonic()
    try:
        request = await served.queue.request_in_loop(wanted.texts, call.key, wanted.context, **options)
    except TooLongError as error:
        limit = min(served.manifest.max_seq_length, wanted.context or served.manifest.max_seq_length)
        raise too_long(error, limit, wanted.field, call.dialect, "shorten it, or let it be cut") from error
    except WhitenError as error:
        raise of_request(error) from error
    request.deadline, request.client = call.deadline, call.key
    call.tokenize_seconds = time.monotonic() - begun
    call.tokens = request.asked_tokens
    if request.texts.truncated and wanted.side not in (None, served.manifest.truncation_side):
        side = served.manifest.truncation_side
        message = f"a text is too long, and this model cuts texts on the {side}; send shorter texts, or leave it out"
        raise ApiError("unsupported_value", message, "truncation_direction")
    return request


async def _computed(call: Call, served: ServedModel, request: QueuedRequest, field: str) -> NDArray[Any]:
    try:
        vectors = await served.queue.answer(request)
    except NoVectorError as error:
        raise of_answer(error.moved(0, field)) from error
    except Exception as error:
        raise of_answer(error) from error
    finally:
        if request.started:
            call.queue_seconds = request.started - request.submitted
            call.run_seconds = max(request.ended - request.started, 0.0)
    call.truncated = request.texts.truncated  # what is refused is not answered with cut texts
    return vectors


def _prompt(served: ServedModel, wanted: Wanted) -> str:
    """Return the prompt that a request asks for, as text, by its name or by the task of its texts; "" for none."""
    prompts, name, kind = Prompts.of(served.manifest), wanted.prompt_name, wanted.input_type or ""
    if wanted.prompt is not None or name == "":
        if name or kind:
            other = "prompt_name" if name else "input_type"
            message = f"the request has a prompt, or asks for none, and has {other}, another one; leave one out"
            raise ApiError("unsupported_value", message, other)
        return _checked_prompt(prompts, wanted.prompt or "")
    if kind in prompts.texts and name in (None, kind):
        name, kind = kind, ""
    if name is not None and name not in prompts.texts:
        known = ", ".join(prompts.texts) or "none"
        message = f"prompt_name is {name[:80]!r}; the prompts of this model are: {known}"
        raise ApiError("unsupported_value", message, "prompt_name")
    if not kind:
        return prompts.resolve(name)
    task = _TASKS.get(letters_of(kind))
    if task is None:
        known = ", ".join(dict.fromkeys(("query", "document", *prompts.texts)))
        raise ApiError("unsupported_value", f"input_type is {kind[:80]!r}; wanted one of {known}", "input_type")
    route = served.manifest.route
    if route in TASK_PROMPTS and route != task:
        message = f"this model holds the route {route} alone, not {task}"
        raise ApiError("unsupported_value", message, "input_type")
    try:
        prompt = prompts.for_task(task)
    except UsageError as error:
        raise ApiError("unsupported_value", str(error), "input_type") from None
    if name is not None and prompts.texts[name] != prompt:
        message = f"prompt_name is {name[:80]!r}, but input_type is {task}, another prompt; leave one out"
        raise ApiError("unsupported_value", message, "prompt_name")
    return prompt


def _beginning(prompt: str) -> str:
    """Return how a text begins that has a prompt already: with or without the blanks behind its last sign."""
    before = prompt.partition(TEXT)[0]
    sign = before.rstrip()
    return before if sign[-1:].isalnum() else sign


def _checked_prompt(prompts: Prompts, text: str) -> str:
    """Return the prompt that a request brings."""
    if len(text) > _PROMPT:
        message = f"prompt has {len(text)} characters; wanted at most {_PROMPT}"
        raise ApiError("unsupported_value", message, "prompt")
    if text.count(TEXT) > 1:
        message = f"prompt has {TEXT} {text.count(TEXT)} times; wanted it once, or not at all"
        raise ApiError("unsupported_value", message, "prompt")
    try:
        return prompts.resolve(prompt=text)
    except UsageError as error:
        raise ApiError("unsupported_value", str(error), "prompt") from None


def json_of(value: object) -> bytes:
    """Return a value as JSON; arrays of numpy are lists."""
    body: bytes = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return body


class Parts(Response):  # type: ignore[misc]  # untyped
    """Answers with a body that is sent part by part, as the client takes it."""

    def __init__(self, parts: Iterable[bytes], size: int, media_type: str) -> None:
        super().__init__(headers={"content-length": str(size)}, media_type=media_type)
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; the last message waits until all parts are taken."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def answer(*parts: bytes, media_type: str = "application/json") -> Response:
    """Return an answer whose body is in parts."""
    size = sum(map(len, parts))
    if size <= _FREE:
        return Response(b"".join(parts), media_type=media_type)
    return Parts([b"".join(parts)] if size <= _JOINED else parts, size, media_type)


def base64_of(row: NDArray[Any]) -> str:
    """Return the bytes of a vector, little-endian, in base64."""
    return b2a_base64(little_endian(row).tobytes(), newline=False).decode("ascii")


def little_endian(vectors: NDArray[Any]) -> NDArray[Any]:
    """Return vectors whose bytes are little-endian."""
    return vectors.astype(vectors.dtype.newbyteorder("<")) if sys.byteorder == "big" else vectors


async def rows_of(vectors: NDArray[Any], item: Callable[[int, NDArray[Any]], object] | None = None) -> list[bytes]:
    """Return vectors as the parts of a JSON list; other requests have their turn while many are written."""
    step = max(_NUMBERS_PER_TURN // max(vectors.shape[1], 1), 1)
    parts: list[bytes] = []
    for start in range(0, len(vectors), step):
        if parts:
            await asyncio.sleep(0)
        some = vectors[start : start + step]
        items = some if item is None else [item(start + place, row) for place, row in enumerate(some)]
        parts.append((b"," if parts else b"[") + json_of(items)[1:-1])
    return [*parts, b"]"] if parts else [b"[]"]
