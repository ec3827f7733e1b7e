"""Answer OpenAI's routes, as openai-python and servers of its kind have them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from numpy.typing import NDArray

from whiten_runtime.bundle.manifest import VectorPrecision
from whiten_serving.http.call import Call, Reply
from whiten_serving.http.encoding import base64_of, json_of, rows_of
from whiten_serving.http.errors import ApiError, of_answer
from whiten_serving.http.inputs import Input
from whiten_serving.http.models import ServedModel, UnknownModelError
from whiten_serving.http.parsing import Form
from whiten_serving.http.service import Service, Task, Wanted

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
    metadata: dict[str, Any] | None = None
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


class TextsRequest(EmbeddingsRequest, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Asks for vectors of texts alone."""

    input: str | list[str]  # type: ignore[assignment]
    metadata: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]


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


_REQUEST = Form(EmbeddingsRequest, TextsRequest)
_TASKS: dict[str, Task] = {
    "query": "query",
    "search_query": "query",
    "document": "document",
    "passage": "document",
    "search_document": "document",
}
_DTYPES = ("precision", "encoding_dtype", "embed_dtype", "output_dtype", "embedding_type")


async def embeddings(service: Service, call: Call) -> Reply:
    """Answer POST /v1/embeddings."""
    asked = await service.parsed(call, _REQUEST)
    served = service.model(call.values.get("deployment") or asked.model)
    if not isinstance(asked.input, str) and not asked.input:
        raise ApiError("empty_input", "input is an empty list; send at least one text", "input")
    vectors = await service.embed(call, served, _wanted(asked), normalize=False)
    return Reply(await _body(vectors, asked.encoding_format == "base64", served.name, call.tokens))


def _wanted(asked: EmbeddingsRequest) -> Wanted:
    """Return what a request asks for, whichever of their names its fields have."""
    cut = asked.truncate
    truncate = None if cut is None else cut if isinstance(cut, bool) else cut != "NONE"
    return Wanted(
        texts=asked.input,
        param="input",
        dimensions=_one_of(asked, "dimensions", "output_dimension"),
        normalize=_one_of(asked, "normalize", "normalized"),
        prompt_name=asked.prompt_name,
        task=None if asked.input_type is None else _TASKS[asked.input_type],
        truncate=_same("truncate", truncate, "truncation", asked.truncation),
        side="left" if cut == "START" else "right" if cut == "END" else None,
        precision=_precision(asked),
    )


def _one_of(asked: EmbeddingsRequest, first: str, second: str) -> Any:
    return _same(first, getattr(asked, first), second, getattr(asked, second))


def _same(first: str, one: Any, second: str, other: Any) -> Any:
    """Return a value that has two names in requests.

    Raises:
        ApiError: both are given and differ.
    """
    if one is not None and other is not None and one != other:
        raise ApiError("unsupported_value", f"{first} and {second} say different things; leave one out", first)
    return other if one is None else one


def _precision(asked: EmbeddingsRequest) -> VectorPrecision:
    given = {name: value for name in _DTYPES if (value := getattr(asked, name)) is not None}
    if not given:
        return "float32"
    found = {"float32" if value == "float" else value for value in given.values()}
    if len(found) > 1:
        raise ApiError(
            "unsupported_value", f"{' and '.join(given)} say different things; leave one out", next(iter(given))
        )
    precision: VectorPrecision = found.pop()  # type: ignore[assignment]
    if asked.encoding_format == "base64" and precision != "float32":
        message = (
            f"encoding_format is base64, whose bytes clients read as float32, but {next(iter(given))} is {precision}; "
            'give encoding_format="float", which openai-python must be told, or leave the precision out'
        )
        raise ApiError("unsupported_value", message, "encoding_format")
    return precision


async def _body(vectors: NDArray[Any], encoded: bool, model: str, tokens: int) -> list[bytes]:
    """Return the body of the answer, in parts."""
    end = b',"model":%s,"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (json_of(model), tokens, tokens)
    return [b'{"object":"list","data":', *await rows_of(vectors, _encoded if encoded else _plain), end]


def _plain(index: int, row: NDArray[Any]) -> dict[str, object]:
    return {"object": "embedding", "index": index, "embedding": row}


def _encoded(index: int, row: NDArray[Any]) -> dict[str, object]:
    return {"object": "embedding", "index": index, "embedding": base64_of(row)}


async def models(service: Service, call: Call) -> Reply:
    """Answer GET /v1/models."""
    return Reply(json_of({"object": "list", "data": [_described(served) for served in service.models]}))


async def model(service: Service, call: Call) -> Reply:
    """Answer GET /v1/models/{id}."""
    try:
        return Reply(json_of(_described(service.models.named(call.values["id"]))))
    except UnknownModelError as error:
        raise of_answer(error) from None


def _described(served: ServedModel) -> dict[str, object]:
    created = int(served.opened.timestamp())
    return {"id": served.name, "object": "model", "created": created, "owned_by": "whiten"}
