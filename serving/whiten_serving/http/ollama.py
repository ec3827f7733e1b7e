"""Answer Ollama's routes, as ollama-python, Open WebUI and others ask them."""

import re
import time
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from whiten_serving.http.calls import Call
from whiten_serving.http.errors import ApiError
from whiten_serving.http.inputs import NO_VALUE, AnyValue, TextsOrIds
from whiten_serving.http.metrics import version
from whiten_serving.http.models import ServedModel
from whiten_serving.http.service import Service, Wanted, answer, json_of, rows_of


class OllamaOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of Ollama, of which only the length of the context means something here."""

    num_ctx: int | float | str | None = None


class _Common(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str | None = None
    keep_alive: str | int | float | None = None
    options: OllamaOptions | None = None
    truncate: bool | None = None


class OllamaEmbedRequest(_Common, kw_only=True):
    """Asks for vectors, which /api/embed divides by their norm. `prompt`, which Ollama has not, stands before each."""

    input: TextsOrIds = msgspec.field(default_factory=lambda: msgspec.Raw(b"[]"))
    dimensions: int | float | None = None
    prompt: str | None = None


class OllamaPromptRequest(_Common, kw_only=True):
    """Asks for one vector, by the older route; without a text for none, as who wants the model in memory."""

    prompt: str = ""


class OllamaGenerateRequest(_Common, kw_only=True):
    """Asks to have a model in memory, or no longer: `ollama run` and `ollama stop` do so without a text."""

    prompt: str = ""
    suffix: AnyValue = NO_VALUE
    system: AnyValue = NO_VALUE
    template: AnyValue = NO_VALUE
    context: AnyValue = NO_VALUE
    images: AnyValue = NO_VALUE
    stream: AnyValue = NO_VALUE


class OllamaShowRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Asks what a model is; older clients call it `name`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class OllamaEmbeddings(TypedDict):
    """A vector for each text, divided by its L2 norm; durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: Annotated[int, Meta(description="Tokens.")]


class OllamaEmbedding(TypedDict):
    """The vector of the text."""

    embedding: list[float]


class OllamaGenerated(TypedDict):
    """Says that the model is there. It stays in memory, whatever `keep_alive` says."""

    model: str
    created_at: str
    response: str
    done: bool
    done_reason: str


class OllamaModel(TypedDict):
    """A model that is served."""

    name: str
    model: str
    modified_at: str
    size: Annotated[int, Meta(description="Bytes.")]
    digest: str
    details: dict[str, Any]


class OllamaModelList(TypedDict):
    """The models, in the order of the command."""

    models: list[OllamaModel]


class OllamaShown(TypedDict):
    """Description of a model."""

    modified_at: str
    details: dict[str, Any]
    parameters: str
    template: str
    capabilities: list[str]
    model_info: dict[str, Any]


class OllamaVersion(TypedDict):
    """The version of whiten."""

    version: str


_SHOW = msgspec.json.Decoder(OllamaShowRequest)
_EMBED = msgspec.json.Decoder(OllamaEmbedRequest)
_PROMPT = msgspec.json.Decoder(OllamaPromptRequest)
_GENERATE = msgspec.json.Decoder(OllamaGenerateRequest)


async def embed(
    service: Service, request: Annotated[Request, OllamaEmbedRequest], call: Call
) -> Annotated[Response, OllamaEmbeddings]:
    """Embed texts."""
    asked = await service.read(request, call, _EMBED)
    with service.models.using(service.models.get(asked.model)) as served:
        none = bytes(memoryview(asked.input)[:5]) == b"null"
        texts = [] if none else await service.inputs.texts(call, asked.input, served.encoder, "input")
        if asked.prompt and not texts:
            raise ApiError("invalid_type", "there is a 'prompt' and no 'input'; the texts belong in 'input'", "input")
        wanted = Wanted(
            texts=texts,
            dimensions=asked.dimensions,
            prompt=asked.prompt,
            truncate=asked.truncate,
            context=_context(asked.options),
        )
        vectors = await service.embed(call, served, wanted, normalize=True)
    took = round((time.monotonic() - call.begun) * 1e9)
    end = b',"total_duration":%d,"load_duration":0,"prompt_eval_count":%d}' % (took, call.tokens)
    return answer(b'{"model":%s,"embeddings":' % json_of(served.name), *await rows_of(vectors), end)


async def embeddings(
    service: Service, request: Annotated[Request, OllamaPromptRequest], call: Call
) -> Annotated[Response, OllamaEmbedding]:
    """Embed one text."""
    asked = await service.read(request, call, _PROMPT)
    if not asked.prompt:
        return answer(json_of({"embedding": []}))
    service.inputs.check([asked.prompt], "prompt")
    wanted = Wanted(texts=[asked.prompt], field="prompt", truncate=asked.truncate, context=_context(asked.options))
    with service.models.using(service.models.get(asked.model)) as served:
        vectors = await service.embed(call, served, wanted, normalize=False)
    return answer(json_of({"embedding": vectors[0]}))


async def generate(
    service: Service, request: Annotated[Request, OllamaGenerateRequest], call: Call
) -> Annotated[Response, OllamaGenerated]:
    """Take the requests by which clients load a model and unload it; no text is generated."""
    asked = await service.read(request, call, _GENERATE)
    served = service.models.get(asked.model)
    if asked.prompt:
        raise ApiError("unsupported_value", f"{served.name!r} does not support generate: this server embeds only")
    over = asked.keep_alive is not None and not re.search("[1-9]", str(asked.keep_alive))  # 0, "0s", "0h0m"
    state: OllamaGenerated = {
        "model": asked.model or served.name,
        "created_at": datetime.now(UTC).isoformat(),
        "response": "",
        "done": True,
        "done_reason": "unload" if over else "load",
    }
    return answer(json_of(state))


def _context(options: OllamaOptions | None) -> int | None:
    """Return the length of a context that the options ask for; None if they do not, as by 0 or -1."""
    context = None if options is None else options.num_ctx
    try:
        number = float(context or 0)
    except ValueError:
        number = 0.5
    if number % 1:
        raise ApiError("invalid_type", f"options.num_ctx is {str(context)[:20]!r}; wanted a whole number", "options")
    return int(number) if number > 0 else None


async def tags(service: Service, request: Request, call: Call) -> Annotated[Response, OllamaModelList]:
    """List the models."""
    return answer(json_of({"models": [_listed(served) for served in service.models]}))


async def running(service: Service, request: Request, call: Call) -> Annotated[Response, OllamaModelList]:
    """List the models in memory, which are all."""
    always = {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}
    return answer(json_of({"models": [{**_listed(served), **always} for served in service.models]}))


async def show(
    service: Service, request: Annotated[Request, OllamaShowRequest], call: Call
) -> Annotated[Response, OllamaShown]:
    """Describe a model."""
    asked = await service.read(request, call, _SHOW)
    served = service.models.get(asked.model or asked.name)
    listed, family = _listed(served), served.manifest.source.model_type
    shown: OllamaShown = {
        "modified_at": listed["modified_at"],
        "details": listed["details"],
        "parameters": "",
        "template": "",
        "capabilities": ["embedding"],
        "model_info": {
            "general.architecture": family,
            f"{family}.embedding_length": served.manifest.dimension,
            f"{family}.context_length": served.manifest.max_seq_length,
        },
    }
    return answer(json_of(shown))


async def about(service: Service, request: Request, call: Call) -> Annotated[Response, OllamaVersion]:
    """Say the version."""
    return answer(json_of({"version": version()}))


def _listed(served: ServedModel) -> OllamaModel:
    name = served.name if ":" in served.name else f"{served.name}:latest"
    manifest, family = served.manifest, served.manifest.source.model_type
    return {
        "name": name,
        "model": name,
        "modified_at": served.opened.isoformat(),
        "size": sum(record.bytes for record in manifest.files.values()),
        "digest": served.digest,
        "details": {
            "parent_model": manifest.source.model,
            "format": "onnx",
            "family": family,
            "families": [family],
            "parameter_size": "",
            "quantization_level": manifest.precision,
        },
    }
