"""Hold what routes need, and compute the vectors that they ask for."""

import time
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from numpy.typing import NDArray

from whiten_runtime.bundle.manifest import Side, VectorPrecision
from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.inference.prompts import DOCUMENT, QUERY, Prompts
from whiten_serving.errors import OverloadedError
from whiten_serving.http.body import read_body
from whiten_serving.http.call import Call
from whiten_serving.http.errors import ApiError, of_answer, of_request, overloaded
from whiten_serving.http.inputs import Input, Inputs
from whiten_serving.http.metrics import Metrics
from whiten_serving.http.models import Models, ServedModel, UnknownModelError
from whiten_serving.http.options import HttpOptions
from whiten_serving.http.parsing import Form
from whiten_serving.http.state import State
from whiten_serving.http.watching import Watched
from whiten_serving.http.workers import Workers

T = TypeVar("T")

Task = Literal["query", "document"]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Holds what a request asks for.

    Attributes:
        texts: one text or several, or token ids.
        param: name of the field that holds them, for messages.
        dimensions: number of leading coordinates; None for all.
        normalize: divide vectors by their norm; None where the request does not say it.
        prompt_name: name of a prompt; None for the default one.
        task: what the texts are, from which the prompt follows; None where the request does not say it.
        truncate: truncate texts that are too long; None where the request does not say it.
        side: side from which they are truncated; None where the request does not say it.
        context: number of tokens of a text that the caller reckons with; None for the model's own.
        precision: precision of the numbers.
    """

    texts: Input
    param: str
    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    task: Task | None = None
    truncate: bool | None = None
    side: Side | None = None
    context: int | None = None
    precision: VectorPrecision = "float32"


@dataclass(frozen=True)
class Service:
    """Holds what routes need.

    Attributes:
        models: what is served.
        options: bounds and defaults.
        metrics: what is counted.
        state: whether the server is ready.
        inputs: checks texts.
        workers: threads of work that no queue bounds.
    """

    models: Models
    options: HttpOptions
    metrics: Metrics
    state: State
    inputs: Inputs
    workers: Workers

    def model(self, name: str | None) -> ServedModel:
        """Return the model that a request names.

        Raises:
            ApiError: there is none.
        """
        try:
            return self.models.get(name)
        except UnknownModelError as error:
            raise of_answer(error) from None

    async def parsed(self, call: Call, form: Form[T]) -> T:
        """Return what the body of a request holds.

        Raises:
            ApiError: it is too large, too slow, or not what is wanted.
            ClientGoneError: the caller went before it was complete.
        """
        options = self.options
        most, together = options.max_body, options.max_waiting_body
        return form.parsed(await read_body(call, self.state.bodies, most, together, options.body_timeout))

    def check_room(self) -> None:
        """Check that at least one model's lanes take more work, before a body is read.

        Raises:
            ApiError: they all have too much work.
        """
        full: OverloadedError | None = None
        for lanes in {one.embeds.batcher.lanes for one in self.models}:
            try:
                lanes.check_room()
            except OverloadedError as error:
                full = error
            else:
                return
        if full is not None:
            raise overloaded(full)

    async def embed(self, call: Call, served: ServedModel, wanted: Wanted, normalize: bool) -> NDArray[Any]:
        """Return the vectors of a request's texts, [n, k], and tell the call what they cost.

        Args:
            call: the request.
            served: the model.
            wanted: what it asks for.
            normalize: whether vectors are divided by their norm, if neither the request nor the operator say it.

        Raises:
            ApiError: the request cannot be computed as it is, or not now.
            ClientGoneError: the caller has gone.
        """
        call.model = served.name
        named = self._named(served, wanted, normalize)
        with self.models.using(served):
            texts = await self.inputs.texts(call, wanted.texts, served.encoder, wanted.param)
            call.texts = len(texts)
            if (left := call.remaining) <= 0:
                raise ApiError("deadline", "the time of the request was over before it was computed; give it more")
            async with Watched(call.receive):
                return await _computed(call, served, wanted, texts, named, left)

    def _named(self, served: ServedModel, wanted: Wanted, normalize: bool) -> dict[str, Any]:
        """Return the options of `AsyncEncoder.request`."""
        asked = wanted.normalize if wanted.normalize is not None else self.options.normalize
        if wanted.normalize is False and served.manifest.normalize:
            message = "normalize is false, but this model divides its vectors by their norm; leave it out"
            raise ApiError("unsupported_value", message, "normalize")
        truncate = self.options.on_long == "truncate" if wanted.truncate is None else wanted.truncate
        return {
            **_prompt(served, wanted),
            "dimensions": wanted.dimensions,
            "normalize": normalize if asked is None else asked,
            "truncate": truncate,
            "precision": wanted.precision,
        }


async def _computed(
    call: Call, served: ServedModel, wanted: Wanted, texts: list[str], named: dict[str, Any], left: float
) -> NDArray[Any]:
    embeds = served.embeds
    begun = time.monotonic()
    try:
        request = await embeds.request(texts, timeout=left, **named)
    except WhitenError as error:
        raise of_request(error) from error
    call.tokenize_seconds = time.monotonic() - begun
    call.tokens, call.truncated = request.tokens, request.texts.truncated
    if call.truncated:
        call.answer_headers.append((b"x-whiten-truncated", b"%d" % call.truncated))
    _check_cut(served, wanted, request.texts.ids, call.truncated)
    try:
        return await embeds.answer(request, max(call.remaining, 0.001))
    except Exception as error:
        raise of_answer(error) from error
    finally:
        if request.started:
            call.queue_seconds = request.started - request.submitted
            call.run_seconds = max(request.ended - request.started, 0.0)


def _check_cut(served: ServedModel, wanted: Wanted, ids: list[list[int]], truncated: int) -> None:
    """Check that texts were cut as the request wants it, if they were cut."""
    if truncated and wanted.side not in (None, served.manifest.truncation_side):
        side = served.manifest.truncation_side
        message = f"a text is too long, and this model cuts texts on the {side}; send shorter texts, or leave it out"
        raise ApiError("unsupported_value", message, "truncation_direction")
    if wanted.context is not None and max(map(len, ids), default=0) > wanted.context:
        message = f"a text has more than num_ctx, {wanted.context}, tokens; send shorter texts, or leave num_ctx out"
        raise ApiError("context_length_exceeded", message, "num_ctx")


def _prompt(served: ServedModel, wanted: Wanted) -> dict[str, str | None]:
    """Return which prompt a request asks for, by its name or by the task of its texts.

    Raises:
        ApiError: there is no such prompt, or the two ask for different ones.
    """
    name, prompts = wanted.prompt_name, served.manifest.prompts
    if name is not None and name not in prompts:
        known = ", ".join(prompts) or "none"
        message = f"prompt_name is {name[:80]!r}; the prompts of this model are: {known}"
        raise ApiError("unsupported_value", message, "prompt_name")
    if wanted.task is None:
        return {} if name is None else {"prompt_name": name}
    prompt = _prompt_of_task(served, wanted.task)
    if name is not None and prompts[name] != prompt:
        message = f"prompt_name is {name[:80]!r}, but input_type is {wanted.task}, another prompt; leave one out"
        raise ApiError("unsupported_value", message, "prompt_name")
    return {"prompt": prompt}


def _prompt_of_task(served: ServedModel, task: Task) -> str:
    """Return the prompt that a model has for queries, or for documents."""
    route = served.manifest.route
    if route in ("query", "document") and route != task:
        raise ApiError("unsupported_value", f"this model holds the route {route} alone, not {task}", "input_type")
    try:
        return Prompts.of(served.manifest).for_task(*(QUERY if task == "query" else DOCUMENT))
    except UsageError as error:
        raise ApiError("unsupported_value", str(error), "input_type") from None
