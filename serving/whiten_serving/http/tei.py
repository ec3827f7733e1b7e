"""Answer the routes of text-embeddings-inference (TEI), as huggingface_hub and SageMaker ask them."""

import asyncio
import re
from enum import Enum
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from whiten_runtime.errors import NoVectorError
from whiten_serving.http.calls import Call
from whiten_serving.http.errors import ApiError
from whiten_serving.http.inputs import TextsOrIds, parse
from whiten_serving.http.metrics import version
from whiten_serving.http.models import ServedModel
from whiten_serving.http.service import Service, Wanted, answer, json_of, rows_of
from whiten_serving.scheduler import MAX_QUEUE_TOKENS


class Direction(Enum):
    """Side from which long texts are cut, in TEI's spelling; huggingface_hub writes small letters."""

    LEFT = "Left"
    RIGHT = "Right"

    @classmethod
    def _missing_(cls, value: object) -> "Direction | None":
        return next((side for side in cls if side.value.lower() == value), None)


class EmbedParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """How texts are embedded. TEI divides vectors by their norm unless a request says otherwise."""

    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Direction | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    dimensions: int | float | None = None


class Waiting(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of the Inference API that change no vector."""

    wait_for_model: bool | None = None
    use_cache: bool | None = None
    use_gpu: bool | None = None


class _Common(EmbedParameters, kw_only=True):
    parameters: EmbedParameters | None = None
    options: Waiting | None = None
    model: str | None = None


class EmbedRequest(_Common, kw_only=True):
    """Asks for vectors. `model` is for a server of several models."""

    inputs: TextsOrIds


class SimilarityInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Text, and the texts that it is compared with."""

    source_sentence: str
    sentences: list[str]


class SimilarityRequest(_Common, kw_only=True):
    """Asks for cosines of one text with others."""

    inputs: SimilarityInput


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Asks for the tokens of texts."""

    inputs: str | list[str]
    add_special_tokens: Annotated[bool, Meta(description="True by default.")] = True
    prompt_name: str | None = None
    model: str | None = None


class Token(TypedDict):
    """A token of a text, and its characters there, after the prompt if there is one: null for a special token."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class InfoOfWhiten(TypedDict):
    """Holds what TEI has no fields for."""

    models: list[str]
    dimension: int
    nested: Annotated[bool, Meta(description="Whether vectors may be cut to any number of dimensions.")]
    matryoshka_dimensions: Annotated[list[int], Meta(description="Other numbers to which they may be cut.")]
    space: str | None
    layers: list[int]
    whitening: str
    similarity: str
    prompts: list[str]
    default_prompt_name: str | None
    normalize: Annotated[dict[str, bool], Meta(description="Whether vectors of each route are divided by their norm.")]
    truncation_side: str
    providers: list[str]
    parity_cosine: Annotated[float | None, Meta(description="Worst cosine with the reference, on this machine.")]
    lanes: int
    max_queue_tokens: int
    max_wait: float | None
    options: dict[str, Any]


class Info(TypedDict):
    """The model, and the options of the server."""

    model_id: str
    model_sha: Annotated[str, Meta(description="SHA-256 of the manifest.")]
    model_dtype: str
    model_type: dict[str, Any]
    max_concurrent_requests: int
    max_input_length: Annotated[int, Meta(description="Tokens of a text; longer ones are cut.")]
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: Annotated[int, Meta(description="Texts of a request.")]
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None
    docker_label: str | None
    whiten: InfoOfWhiten


_EMBED = msgspec.json.Decoder(EmbedRequest)
_SIMILARITY = msgspec.json.Decoder(SimilarityRequest)
_SIMILARITY_INPUT = msgspec.json.Decoder(SimilarityInput)
_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)

_OBJECT_BEGINS = re.compile(rb"\s*\{")


async def embed(
    service: Service, request: Annotated[Request, EmbedRequest], call: Call
) -> Annotated[Response, list[list[float]]]:
    """Embed texts.

    Vectors are divided by their L2 norm unless the request says otherwise.
    """
    return await _embed(service, request, call, await service.read(request, call, _EMBED))


async def similarity(
    service: Service, request: Annotated[Request, SimilarityRequest], call: Call
) -> Annotated[Response, list[float]]:
    """Compare a text with others, by cosines."""
    asked = await service.read(request, call, _SIMILARITY)
    return await _similarity(service, request, call, asked, asked.inputs)


async def root(
    service: Service, request: Annotated[Request, EmbedRequest, SimilarityRequest], call: Call
) -> Annotated[Response, list[list[float]], list[float]]:
    """Embed texts, or compare one with others."""
    asked = await service.read(request, call, _EMBED)
    if not _OBJECT_BEGINS.match(asked.inputs):
        return await _embed(service, request, call, asked)
    size = memoryview(asked.inputs).nbytes
    inputs = await service.inputs.decode(call, size, parse, _SIMILARITY_INPUT, asked.inputs, "inputs")
    return await _similarity(service, request, call, asked, inputs)


async def _embed(service: Service, request: Request, call: Call, asked: EmbedRequest) -> Response:
    with service.models.using(service.model_of(request, asked.model)) as served:
        texts = await service.inputs.texts(call, asked.inputs, served.encoder, "inputs")
        if not texts:
            raise ApiError("empty_input", "inputs is an empty list; send at least one text")
        wanted = _wanted(texts, asked)
        return answer(*await rows_of(await service.embed(call, served, wanted, normalize=True)))


async def _similarity(
    service: Service, request: Request, call: Call, asked: _Common, inputs: SimilarityInput
) -> Response:
    if not inputs.sentences:
        raise ApiError("empty_input", "sentences is an empty list; send at least one text")
    texts = [inputs.source_sentence, *inputs.sentences]
    wanted = _wanted(texts, asked)
    if wanted.normalize is not None:
        raise ApiError("unknown_field", "normalize means nothing to cosines; leave it out")
    service.inputs.check(texts, "sentences")
    with service.models.using(service.model_of(request, asked.model)) as served:
        try:
            vectors = await service.embed(call, served, wanted, normalize=True)
        except ApiError as error:
            if not isinstance(failed := error.__cause__, NoVectorError):
                raise
            named = failed.moved(-1, "sentences") if failed.index else f"source_sentence {failed.failures[0]}"
            raise ApiError(error.code, str(named)) from failed
    return answer(json_of(await asyncio.to_thread(_cosines, vectors)))


def _cosines(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cosines of the first vector with the others; 0 where a norm is 0."""
    rows = vectors.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1)
    products = norms[1:] * norms[0]
    cosines = np.divide(rows[1:] @ rows[0], products, out=np.zeros(len(rows) - 1), where=products > 0)
    clipped: NDArray[np.float32] = np.clip(cosines, -1, 1).astype(np.float32)
    return clipped


def _wanted(texts: list[str], asked: _Common) -> Wanted:
    """Return what a request asks for, which some clients send beside the inputs and others below `parameters`."""
    fields: dict[str, Any] = {}
    for field in EmbedParameters.__struct_fields__:
        here, there = getattr(asked, field), getattr(asked.parameters, field, None)
        if here is not None and there is not None and here != there:
            message = f"{field} and parameters.{field} say different things; leave one out"
            raise ApiError("unsupported_value", message)
        fields[field] = there if here is None else here
    side = fields.pop("truncation_direction")
    return Wanted(texts=texts, field="inputs", side=side and side.value.lower(), **fields)


async def tokenize(
    service: Service, request: Annotated[Request, TokenizeRequest], call: Call
) -> Annotated[Response, list[list[Token]]]:
    """Show the tokens of texts."""
    asked = await service.read(request, call, _TOKENIZE)
    texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
    service.inputs.check(texts, "inputs")
    service.inputs.check_total(map(len, texts), "characters", "inputs")
    with service.models.using(service.model_of(request, asked.model)) as served:
        call.model, call.texts = served.name, len(texts)
        prompt, special = _prompt(served, asked.prompt_name), asked.add_special_tokens
        rows = await service.inputs.map_in_threads(call, lambda text: _tokens(served, prompt + text, special), texts)
    call.tokens = sum(map(len, rows))
    return answer(json_of(rows))


def _prompt(served: ServedModel, name: str | None) -> str:
    prompts = {key: text for key, text in served.manifest.prompts.items() if "{text}" not in text}
    if name and name not in prompts:
        known = ", ".join(prompts) or "none"
        message = f"prompt_name is {name[:80]!r}; the prompts of this model that stand before a text are: {known}"
        raise ApiError("unsupported_value", message)
    return prompts[name] if name else ""


def _tokens(served: ServedModel, text: str, special: bool) -> list[Token]:
    return [
        {
            "id": token.id,
            "text": token.text if token.special else text[token.start : token.end],
            "special": token.special,
            "start": None if token.special else token.start,
            "stop": None if token.special else token.end,
        }
        for token in served.encoder.tokens(text, special=special)
    ]


async def info(service: Service, request: Request, call: Call) -> Annotated[Response, Info]:
    """Describe the model and the options."""
    name = request.path_params.get("model") or service.models.names[0]
    served = service.models.get(name)
    manifest, settings, scheduler = served.manifest, service.settings, service.models.scheduler
    described: Info = {
        "model_id": served.name,
        "model_sha": served.digest,
        "model_dtype": {"fp32": "float32", "fp16": "float16"}.get(manifest.precision, manifest.precision),
        "model_type": {"embedding": {"pooling": manifest.pooling or "none"}},
        "max_concurrent_requests": service.budget.requests.limit,
        "max_input_length": manifest.max_seq_length,
        "max_batch_tokens": served.queue.runner.schedule.budget,
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
            "nested": manifest.nested,
            "matryoshka_dimensions": list(manifest.matryoshka_dimensions),
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
            "max_queue_tokens": MAX_QUEUE_TOKENS,
            "max_wait": scheduler.max_wait,
            "options": settings.public(),
        },
    }
    return answer(json_of(described))


def _normalizes(service: Service, served: ServedModel) -> dict[str, bool]:
    """Return whether each route's vectors are divided by their norm, if a request does not say it."""
    routes = {"/v1/embeddings": False, "/embed": True, "/api/embed": True, "/api/embeddings": False}
    return {route: service.normalizes(served, default) for route, default in routes.items()}
