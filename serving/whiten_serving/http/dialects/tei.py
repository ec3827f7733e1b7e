"""Answer the routes of text-embeddings-inference (TEI), as huggingface_hub and SageMaker ask them."""

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from whiten_runtime.errors import UsageError
from whiten_serving.http.call import Call, Reply
from whiten_serving.http.encoding import json_of, rows_of
from whiten_serving.http.errors import ApiError
from whiten_serving.http.inputs import Input
from whiten_serving.http.models import ServedModel
from whiten_serving.http.parsing import Form
from whiten_serving.http.service import Service, Wanted

Direction = Literal["Left", "Right", "left", "right"]


class EmbedParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Holds how texts are embedded. TEI divides vectors by their norm unless a request says otherwise."""

    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Direction | None = None
    prompt_name: str | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None


class Waiting(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Holds options of the Inference API that change no vector."""

    wait_for_model: bool | None = None
    use_cache: bool | None = None
    use_gpu: bool | None = None


class EmbedRequest(EmbedParameters, kw_only=True):
    """Asks for vectors. `model` is for a server of several models, and may be in the query string too."""

    inputs: Input
    parameters: EmbedParameters | None = None
    options: Waiting | None = None
    model: str | None = None


class SimilarityInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Holds a text, and the texts that it is compared with."""

    source_sentence: str
    sentences: list[str]


class SimilarityRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Asks for cosines of one text with others."""

    inputs: SimilarityInput
    parameters: EmbedParameters | None = None
    options: Waiting | None = None
    model: str | None = None


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Asks for the tokens of texts."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str | None = None


class DecodeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Asks for the texts of token ids."""

    ids: list[Annotated[int, Meta(ge=0)] | list[Annotated[int, Meta(ge=0)]]]
    skip_special_tokens: bool = True
    model: str | None = None


class TokenAnswer(msgspec.Struct):
    """Describes a token; special ones have no place in the text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class ErrorAnswer(msgspec.Struct):
    """Holds an error."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


class TextsRequest(EmbedRequest, kw_only=True):
    """Asks for vectors of texts alone."""

    inputs: str | list[str]  # type: ignore[assignment]


class EitherRequest(EmbedParameters, kw_only=True):
    """Asks for vectors or for cosines; the inputs say which."""

    inputs: Input | SimilarityInput
    parameters: EmbedParameters | None = None
    options: Waiting | None = None
    model: str | None = None


class EitherTextsRequest(EitherRequest, kw_only=True):
    """Asks for vectors of texts alone, or for cosines."""

    inputs: str | list[str] | SimilarityInput  # type: ignore[assignment]


class NoIdsRequest(DecodeRequest, kw_only=True):
    """Asks for nothing: stands for requests of too many ids."""

    ids: None  # type: ignore[assignment]


EmbedAnswer = list[list[float]]
SimilarityAnswer = list[float]
TokenizeAnswer = list[list[TokenAnswer]]
DecodeAnswer = list[str]

_EMBED = Form(EmbedRequest, TextsRequest)
_SIMILARITY = Form(SimilarityRequest)
_TOKENIZE = Form(TokenizeRequest)
_DECODE = Form(DecodeRequest, NoIdsRequest)
_EITHER = Form(EitherRequest, EitherTextsRequest)


async def embed(service: Service, call: Call) -> Reply:
    """Answer POST /embed."""
    asked = await service.parsed(call, _EMBED)
    return await _embed(service, call, asked)


async def similarity(service: Service, call: Call) -> Reply:
    """Answer POST /similarity: cosines, as TEI gives them."""
    return await _similarity(service, call, await service.parsed(call, _SIMILARITY))


async def root(service: Service, call: Call) -> Reply:
    """Answer POST / and /invocations: vectors, or cosines if the inputs are a sentence and others."""
    asked = await service.parsed(call, _EITHER)
    if not isinstance(asked.inputs, SimilarityInput):
        return await _embed(service, call, asked)
    for field in EmbedParameters.__struct_fields__:
        if getattr(asked, field) is not None:
            raise ApiError("unknown_field", f"{field} beside a source_sentence is not understood; leave it out", field)
    return await _similarity(
        service, call, SimilarityRequest(inputs=asked.inputs, parameters=asked.parameters, model=asked.model)
    )


async def _embed(service: Service, call: Call, asked: EmbedRequest | EitherRequest) -> Reply:
    assert not isinstance(asked.inputs, SimilarityInput)
    if not isinstance(asked.inputs, str) and not asked.inputs:
        raise ApiError("empty_input", "inputs is an empty list; send at least one text", "inputs")
    served = _model(service, call, asked.model)
    wanted = _wanted(asked.inputs, "inputs", _merged(asked, asked.parameters))
    return Reply(await rows_of(await service.embed(call, served, wanted, normalize=True)))


async def _similarity(service: Service, call: Call, asked: SimilarityRequest) -> Reply:
    if not asked.inputs.sentences:
        raise ApiError("empty_input", "sentences is an empty list; send at least one text", "sentences")
    served = _model(service, call, asked.model)
    parameters = asked.parameters or EmbedParameters()
    if parameters.normalize is not None:
        raise ApiError("unknown_field", "normalize means nothing to cosines; leave it out", "normalize")
    texts: Input = [asked.inputs.source_sentence, *asked.inputs.sentences]
    vectors = await service.embed(call, served, _wanted(texts, "sentences", parameters), normalize=True)
    return Reply(json_of(_cosines(vectors)))


def _cosines(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cosines of the first vector with the others; 0 where a norm is 0."""
    rows = vectors.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1)
    products = norms[1:] * norms[0]
    found = np.divide(rows[1:] @ rows[0], products, out=np.zeros(len(rows) - 1), where=products > 0)
    clipped: NDArray[np.float32] = np.clip(found, -1, 1).astype(np.float32)
    return clipped


def _model(service: Service, call: Call, name: str | None) -> ServedModel:
    """Return the model that the path, the body or the query string names; there is no such field in TEI."""
    return service.model(call.values.get("model") or name or call.query("model"))


def _merged(asked: EmbedParameters, parameters: EmbedParameters | None) -> EmbedParameters:
    """Return the parameters of a request, which some clients send beside the inputs and others below `parameters`.

    Raises:
        ApiError: one is in both places, with different values.
    """
    if parameters is None:
        return asked
    named: dict[str, Any] = {}
    for field in EmbedParameters.__struct_fields__:
        here, there = getattr(asked, field), getattr(parameters, field)
        if here is not None and there is not None and here != there:
            message = f"{field} and parameters.{field} say different things; leave one out"
            raise ApiError("unsupported_value", message, field)
        named[field] = there if here is None else here
    return EmbedParameters(**named)


def _wanted(texts: Input, param: str, parameters: EmbedParameters) -> Wanted:
    direction = parameters.truncation_direction
    return Wanted(
        texts=texts,
        param=param,
        dimensions=parameters.dimensions,
        normalize=parameters.normalize,
        prompt_name=parameters.prompt_name,
        truncate=parameters.truncate,
        side=None if direction is None else "left" if direction.lower() == "left" else "right",
    )


async def tokenize(service: Service, call: Call) -> Reply:
    """Answer POST /tokenize."""
    asked = await service.parsed(call, _TOKENIZE)
    served = _model(service, call, asked.model)
    texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
    service.inputs.check_count(len(texts), "inputs")
    service.inputs.check(texts, "inputs")
    service.inputs.check_total(map(len, texts), "characters", "inputs")
    call.model, call.texts = served.name, len(texts)
    prompt = _prompt(served, asked.prompt_name)
    special = asked.add_special_tokens
    with service.models.using(served):
        answer = await service.workers.map(call, lambda text: _tokens(served, prompt + text, special), texts)
    call.tokens = sum(map(len, answer))
    return Reply(json_of(answer))


def _prompt(served: ServedModel, name: str | None) -> str:
    if name is None:
        return ""
    if name not in served.manifest.prompts or "{text}" in served.manifest.prompts[name]:
        known = ", ".join(one for one, text in served.manifest.prompts.items() if "{text}" not in text) or "none"
        message = f"prompt_name is {name[:80]!r}; the prompts of this model that stand before a text are: {known}"
        raise ApiError("unsupported_value", message, "prompt_name")
    return served.manifest.prompts[name]


def _tokens(served: ServedModel, text: str, special: bool) -> list[dict[str, object]]:
    return [
        {
            "id": one.id,
            "text": one.text if one.special else text[one.start : one.end],
            "special": one.special,
            "start": None if one.special else one.start,
            "stop": None if one.special else one.end,
        }
        for one in served.encoder.tokens(text, special=special)
    ]


async def decode(service: Service, call: Call) -> Reply:
    """Answer POST /decode."""
    asked = await service.parsed(call, _DECODE)
    served = _model(service, call, asked.model)
    rows: list[Any] = asked.ids if asked.ids and isinstance(asked.ids[0], list) else [asked.ids]
    service.inputs.check_count(len(rows), "ids")
    call.model, call.texts = served.name, len(rows)
    if not all(isinstance(row, list) and all(type(one) is int for one in row) for row in rows):
        raise ApiError("invalid_type", "ids: expected token ids alone, or lists of token ids alone", "ids")
    service.inputs.check_total(map(len, rows), "token ids", "ids")
    skip = asked.skip_special_tokens
    try:
        with service.models.using(served):
            texts = await service.workers.map(call, lambda row: served.encoder.decode(row, skip_special=skip), rows)
            return Reply(json_of(texts))
    except UsageError as error:
        raise ApiError("token_ids", f"ids: {error}", "ids") from None


async def wrong_kind(service: Service, call: Call) -> Reply:
    """Refuse POST /rerank, /predict, /embed_sparse and /embed_all, as TEI does for embedding models."""
    kind = {"/rerank": "a re-ranker", "/predict": "a classifier", "/embed_sparse": "a model of sparse vectors"}
    wanted = kind.get(call.route, "a model that gives vectors of tokens")
    raise ApiError("wrong_model_kind", f"{call.route} is for {wanted}, and this is an embedding model; use /embed")
