"""Answer Ollama's routes, as ollama-python, Open WebUI and others ask them."""

import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from whiten_serving.http.about import version
from whiten_serving.http.call import Call, Reply
from whiten_serving.http.encoding import json_of, rows_of
from whiten_serving.http.errors import ApiError, of_answer
from whiten_serving.http.inputs import Input
from whiten_serving.http.models import ServedModel, UnknownModelError
from whiten_serving.http.parsing import Form
from whiten_serving.http.service import Service, Wanted

_WITHOUT_EFFECT = frozenset(
    {
        *("num_keep", "seed", "num_predict", "top_k", "top_p", "min_p", "tfs_z", "typical_p", "repeat_last_n"),
        *("temperature", "repeat_penalty", "presence_penalty", "frequency_penalty", "mirostat", "mirostat_tau"),
        *("mirostat_eta", "penalize_newline", "stop", "numa", "num_batch", "num_gpu", "main_gpu", "low_vram"),
        *("f16_kv", "logits_all", "vocab_only", "use_mmap", "use_mlock", "num_thread"),
    }
)
"""Options of Ollama that choose words or places in memory, and so change no vector."""


class _Common(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str | None = None
    keep_alive: str | int | float | None = None
    options: dict[str, Any] | None = None
    truncate: bool | None = None


class EmbedRequest(_Common, kw_only=True):
    """Asks for vectors, which /api/embed divides by their norm."""

    input: Input
    dimensions: Annotated[int, Meta(ge=0)] | None = None


class PromptRequest(_Common, kw_only=True):
    """Asks for one vector, by the older route."""

    prompt: str


Scalar = str | int | float | bool | None
PlainOptions = msgspec.defstruct(
    "PlainOptions", [(name, Scalar, None) for name in sorted({"num_ctx", *_WITHOUT_EFFECT})], forbid_unknown_fields=True
)
"""Type of options that are no lists."""


class TextsRequest(EmbedRequest, kw_only=True):
    """Asks for vectors of texts alone."""

    input: str | list[str]  # type: ignore[assignment]
    options: PlainOptions | None = None  # type: ignore[valid-type]


class PlainPromptRequest(PromptRequest, kw_only=True):
    """Asks for one vector, with options that are no lists."""

    options: PlainOptions | None = None  # type: ignore[valid-type]


class EmbedAnswer(msgspec.Struct):
    """Holds vectors; durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class PromptAnswer(msgspec.Struct):
    """Holds one vector."""

    embedding: list[float]


class ShowRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Asks what a model is."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class ErrorAnswer(msgspec.Struct):
    """Holds an error."""

    error: str


class VersionAnswer(msgspec.Struct):
    """Holds the version of this server."""

    version: str


_EMBED = Form(EmbedRequest, TextsRequest)
_PROMPT = Form(PromptRequest, PlainPromptRequest)
_SHOW = Form(ShowRequest)


async def embed(service: Service, call: Call) -> Reply:
    """Answer POST /api/embed."""
    asked = await service.parsed(call, _EMBED)
    served = service.model(asked.model)
    wanted = Wanted(
        texts=asked.input,
        param="input",
        dimensions=asked.dimensions or None,
        truncate=asked.truncate,
        context=_context(asked.options),
    )
    vectors = await service.embed(call, served, wanted, normalize=True)
    head = b'{"model":%s,"embeddings":' % json_of(served.name)
    took = round((time.monotonic() - call.begun) * 1e9)
    end = b',"total_duration":%d,"load_duration":0,"prompt_eval_count":%d}' % (took, call.tokens)
    return Reply([head, *await rows_of(vectors), end])


async def embeddings(service: Service, call: Call) -> Reply:
    """Answer POST /api/embeddings, whose vectors are as the bundle gives them."""
    asked = await service.parsed(call, _PROMPT)
    served = service.model(asked.model)
    wanted = Wanted(texts=asked.prompt, param="prompt", truncate=asked.truncate, context=_context(asked.options))
    vectors = await service.embed(call, served, wanted, normalize=False)
    return Reply(json_of({"embedding": vectors[0]}))


def _context(options: dict[str, Any] | msgspec.Struct | None) -> int | None:
    """Return the length of a context that the options ask for; None if they do not.

    Raises:
        ApiError: an option is not known, so it might change vectors.
    """
    named = msgspec.structs.asdict(options) if isinstance(options, msgspec.Struct) else options or {}
    given = {name: value for name, value in named.items() if value is not None}
    context = given.pop("num_ctx", None)
    if unknown := [name for name in given if name not in _WITHOUT_EFFECT]:
        message = f"options.{unknown[0][:80]} is not one that this server understands; leave it out"
        raise ApiError("unknown_field", message, "options")
    if context is not None and (type(context) is not int or context < 1):
        raise ApiError("invalid_type", "options.num_ctx is not a whole number of at least 1", "options")
    return context


async def tags(service: Service, call: Call) -> Reply:
    """Answer GET /api/tags."""
    return Reply(json_of({"models": [_listed(served) for served in service.models]}))


async def running(service: Service, call: Call) -> Reply:
    """Answer GET /api/ps: all models are in memory."""
    return Reply(json_of({"models": [{**_listed(served), "size_vram": 0} for served in service.models]}))


async def show(service: Service, call: Call) -> Reply:
    """Answer POST /api/show."""
    asked = await service.parsed(call, _SHOW)
    try:
        served = service.models.named(asked.model or asked.name)
    except UnknownModelError as error:
        raise of_answer(error) from None
    manifest = served.manifest
    family = manifest.source.model_type
    answer = {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "license": manifest.source.license or "",
        "details": _details(served),
        "model_info": {
            "general.architecture": family,
            "general.basename": served.name,
            f"{family}.context_length": manifest.max_seq_length,
            f"{family}.embedding_length": manifest.dimension,
        },
        "capabilities": ["embedding"],
        "modified_at": served.opened.isoformat(),
    }
    return Reply(json_of(answer))


async def about(service: Service, call: Call) -> Reply:
    """Answer GET /api/version."""
    return Reply(json_of({"version": version()}))


def _listed(served: ServedModel) -> dict[str, object]:
    name = served.name if ":" in served.name else f"{served.name}:latest"
    size = sum(record.bytes for record in served.manifest.files.values())
    return {
        "name": name,
        "model": name,
        "modified_at": served.opened.isoformat(),
        "size": size,
        "digest": served.digest,
        "details": _details(served),
    }


def _details(served: ServedModel) -> dict[str, object]:
    manifest = served.manifest
    family = manifest.source.model_type
    return {
        "parent_model": manifest.source.model,
        "format": "onnx",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": manifest.precision,
    }
