"""Answer OpenAI's routes, as openai-python and servers of its kind have them."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from whiten_runtime.bundle.manifest import VectorPrecision
from whiten_serving.http.calls import Call
from whiten_serving.http.errors import ApiError
from whiten_serving.http.inputs import NO_VALUE, AnyValue, TextsOrIds
from whiten_serving.http.models import ServedModel
from whiten_serving.http.passages import embed_passages
from whiten_serving.http.service import Service, Wanted, answer, base64_of, json_of, little_endian, rows_of


class EmbeddingsRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Asks for vectors. The fields from `prompt` on are not OpenAI's; clients send them as `extra_body`."""

    input: TextsOrIds
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | float | None = None
    user: AnyValue = NO_VALUE
    metadata: AnyValue = NO_VALUE
    prompt: str | None = None
    prompt_name: str | None = None
    input_type: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    normalize: bool | None = None
    precision: VectorPrecision | None = None
    passages: Annotated[int, Meta(ge=1)] | list[Annotated[list[int], Meta(min_length=2, max_length=2)]] | None = None


class Usage(TypedDict):
    """Tokens that were computed, with those of prompts and special ones."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """Vector of one text, or of one passage of it."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | Annotated[str, Meta(description="Bytes of float32 numbers, little-endian, in base64.")]
    start: NotRequired[Annotated[int, Meta(description="First character of the passage.")]]
    end: NotRequired[Annotated[int, Meta(description="The character after its last one.")]]


class EmbeddingsResponse(TypedDict):
    """A vector for each text, in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class Model(TypedDict):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: Annotated[int, Meta(description="Seconds since 1970 until it was opened.")]
    owned_by: str
    dimensions: Annotated[int, Meta(description="Numbers of a vector.")]
    normalized: Annotated[bool, Meta(description="Whether vectors of /v1/embeddings have norm 1 by default.")]
    max_model_len: Annotated[int, Meta(description="Tokens of a text; longer ones are cut.")]


class ModelList(TypedDict):
    """The models, in the order of the command."""

    object: Literal["list"]
    data: list[Model]


_BYTES = "application/octet-stream"
"""Media type that a request accepts which wants the bytes of vectors."""

_DECODER = msgspec.json.Decoder(EmbeddingsRequest)


async def embeddings(
    service: Service, request: Annotated[Request, EmbeddingsRequest], call: Call
) -> Annotated[Response, EmbeddingsResponse]:
    """Embed texts.

    Vectors are divided by their L2 norm only where the model, the request or the operator says so. With `Accept:
    application/octet-stream`, the answer is their bytes, one vector after another. With `passages`, a vector for each
    passage of one text, from a single pass over all of it (late chunking): their first characters and those after their
    last, or a number of tokens.
    """
    asked = await service.read(request, call, _DECODER)
    name = request.path_params.get("deployment") or asked.model
    with service.models.using(service.model_of(request, name)) as served:
        texts = await service.inputs.texts(call, asked.input, served.encoder, "input")
        if not texts:
            raise ApiError("empty_input", "input is an empty list; send at least one text", "input")
        wanted, spans = _wanted(asked, texts), None
        if asked.passages is None:
            vectors = await service.embed(call, served, wanted, normalize=False)
        else:
            vectors, spans = await embed_passages(service, call, served, wanted, asked.passages)
    if call.headers.get(b"accept") == _BYTES.encode():
        return _in_bytes(vectors)
    encode = base64_of if asked.encoding_format == "base64" else lambda row: row
    places = [{}] * len(vectors) if spans is None else [{"start": start, "end": end} for start, end in spans]
    rows = await rows_of(
        vectors, lambda at, row: {"object": "embedding", "index": at, "embedding": encode(row), **places[at]}
    )
    end = b',"model":%s,"usage":{"prompt_tokens":%d,"total_tokens":%d}}'
    return answer(b'{"object":"list","data":', *rows, end % (json_of(served.name), call.tokens, call.tokens))


def _wanted(asked: EmbeddingsRequest, texts: list[str]) -> Wanted:
    """Return what a request asks for."""
    precision = asked.precision or "float32"
    if asked.encoding_format == "base64" and precision != "float32":
        message = (
            f"encoding_format is base64, whose bytes clients read as float32, but precision is {precision}; "
            'give encoding_format="float", which openai-python must be told, or leave the precision out'
        )
        raise ApiError("unsupported_value", message, "encoding_format")
    cut, most = asked.truncate, asked.truncate_prompt_tokens
    if most == 0:
        message = "truncate_prompt_tokens is 0; wanted a number of tokens, or -1 for the model's"
        raise ApiError("unsupported_value", message, "truncate_prompt_tokens")
    return Wanted(
        texts=texts,
        dimensions=asked.dimensions,
        normalize=asked.normalize,
        prompt=asked.prompt,
        prompt_name=asked.prompt_name,
        input_type=asked.input_type,
        context=None if most == -1 else most,
        truncate=None if cut is None else cut if isinstance(cut, bool) else cut != "NONE",
        side="left" if cut == "START" else "right" if cut == "END" else None,
        precision=precision,
    )


def _in_bytes(vectors: NDArray[Any]) -> Response:
    """Return vectors row by row, little-endian, with their shape and type in headers."""
    response = answer(little_endian(vectors).tobytes(), media_type=_BYTES)
    response.headers["x-whiten-shape"] = ",".join(map(str, vectors.shape))
    response.headers["x-whiten-dtype"] = vectors.dtype.name
    return response


async def models(service: Service, request: Request, call: Call) -> Annotated[Response, ModelList]:
    """List the models."""
    return answer(json_of({"object": "list", "data": [_described(service, served) for served in service.models]}))


async def model(service: Service, request: Request, call: Call) -> Annotated[Response, Model]:
    """Describe a model."""
    return answer(json_of(_described(service, service.models.named(request.path_params["id"]))))


def _described(service: Service, served: ServedModel) -> Model:
    return {
        "id": served.name,
        "object": "model",
        "created": int(served.opened.timestamp()),
        "owned_by": "whiten",
        "dimensions": served.manifest.dimension,
        "normalized": service.normalizes(served, False),
        "max_model_len": served.manifest.max_seq_length,
    }
