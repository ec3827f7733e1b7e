"""Answer OpenAI's routes, as openai-python and servers of its kind have them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from whiten_runtime.bundle.records import VectorPrecision
from whiten_serving.http.errors import ApiError
from whiten_serving.http.inputs import Input
from whiten_serving.http.models import ServedModel
from whiten_serving.http.service import Call, Service, Task, Wanted, answer, base64_of, json_of, rows_of

Dtype = Literal["float", "float32", "int8", "uint8", "binary", "ubinary"]
Count = Annotated[int, Meta(ge=1)]


class EmbeddingsRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Asks for vectors. Fields besides OpenAI's are those of other servers of its kind: vLLM, Voyage, Mistral, Jina."""

    input: Input
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    output_dimension: Count | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    prompt_name: str | None = None
    input_type: Literal["query", "document", "passage", "search_query", "search_document"] | None = None
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    truncation: bool | None = None
    normalize: bool | None = None
    normalized: bool | None = None
    precision: Dtype | None = None
    encoding_dtype: Dtype | None = None
    embed_dtype: Dtype | None = None
    output_dtype: Dtype | None = None
    embedding_type: Dtype | None = None


class Embedding(msgspec.Struct):
    """Holds one vector: numbers, or the bytes of float32 numbers, little-endian, in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(msgspec.Struct):
    """Counts the tokens of a request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(msgspec.Struct):
    """Holds the vectors of a request, in the order of its texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class ModelAnswer(msgspec.Struct):
    """Describes one model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsAnswer(msgspec.Struct):
    """Lists the models."""

    object: Literal["list"]
    data: list[ModelAnswer]


class ErrorBody(msgspec.Struct):
    """Describes an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct):
    """Holds an error."""

    error: ErrorBody


_DECODER = msgspec.json.Decoder(EmbeddingsRequest)
_TASKS: dict[str, Task] = {
    "query": "query",
    "search_query": "query",
    "document": "document",
    "passage": "document",
    "search_document": "document",
}
_DTYPES = ("precision", "encoding_dtype", "embed_dtype", "output_dtype", "embedding_type")


async def embeddings(service: Service, request: Request, call: Call) -> Response:
    asked = await service.parsed(request, call, _DECODER)
    served = service.models.get(request.path_params.get("deployment") or asked.model)
    with service.models.using(served):
        texts = await service.inputs.texts(asked.input, served.encoder, "input")
        if not texts:
            raise ApiError("empty_input", "input is an empty list; send at least one text", "input")
        vectors = await service.embed(call, served, _wanted(asked, texts), normalize=False)
    rows = await rows_of(vectors, _encoded if asked.encoding_format == "base64" else _plain)
    end = b',"model":%s,"usage":{"prompt_tokens":%d,"total_tokens":%d}}'
    return answer(b'{"object":"list","data":' + rows + end % (json_of(served.name), call.tokens, call.tokens))


def _wanted(asked: EmbeddingsRequest, texts: list[str]) -> Wanted:
    """Return what a request asks for, whichever of their names its fields have."""
    cut = asked.truncate
    truncate = None if cut is None else cut if isinstance(cut, bool) else cut != "NONE"
    return Wanted(
        texts=texts,
        dimensions=_same("dimensions", asked.dimensions, "output_dimension", asked.output_dimension),
        normalize=_same("normalize", asked.normalize, "normalized", asked.normalized),
        prompt_name=asked.prompt_name,
        task=None if asked.input_type is None else _TASKS[asked.input_type],
        truncate=_same("truncate", truncate, "truncation", asked.truncation),
        side="left" if cut == "START" else "right" if cut == "END" else None,
        precision=_precision(asked),
    )


def _same(first: str, one: Any, second: str, other: Any) -> Any:
    """Return a value that has two names in requests."""
    if one is not None and other is not None and one != other:
        raise ApiError("unsupported_value", f"{first} and {second} say different things; leave one out", first)
    return other if one is None else one


def _precision(asked: EmbeddingsRequest) -> VectorPrecision:
    """Return the precision of numbers, whichever of its names the field has."""
    given = {name: value for name in _DTYPES if (value := getattr(asked, name)) is not None}
    found: set[VectorPrecision] = {"float32" if value == "float" else value for value in given.values()}
    if not found:
        return "float32"
    if len(found) > 1:
        raise ApiError(
            "unsupported_value", f"{' and '.join(given)} say different things; leave one out", next(iter(given))
        )
    precision = found.pop()
    if asked.encoding_format == "base64" and precision != "float32":
        message = (
            f"encoding_format is base64, whose bytes clients read as float32, but {next(iter(given))} is {precision}; "
            'give encoding_format="float", which openai-python must be told, or leave the precision out'
        )
        raise ApiError("unsupported_value", message, "encoding_format")
    return precision


def _plain(index: int, row: NDArray[Any]) -> dict[str, object]:
    return {"object": "embedding", "index": index, "embedding": row}


def _encoded(index: int, row: NDArray[Any]) -> dict[str, object]:
    return {"object": "embedding", "index": index, "embedding": base64_of(row)}


async def models(service: Service, request: Request, call: Call) -> Response:
    return answer(json_of({"object": "list", "data": [_described(served) for served in service.models]}))


async def model(service: Service, request: Request, call: Call) -> Response:
    return answer(json_of(_described(service.models.named(request.path_params["id"]))))


def _described(served: ServedModel) -> dict[str, object]:
    created = int(served.opened.timestamp())
    return {"id": served.name, "object": "model", "created": created, "owned_by": "whiten"}
