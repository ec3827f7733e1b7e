"""Embed the passages of one text from a single pass over it (late chunking), one pass at a time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from whiten_runtime.encoder import embedder_of
from whiten_runtime.errors import NoVectorError, TooLongError, UsageError, WhitenError
from whiten_runtime.inference.engine import Interruption
from whiten_runtime.inference.passages import windows_of
from whiten_runtime.opened_bundle import encode_options
from whiten_serving.http.calls import Call
from whiten_serving.http.errors import ApiError, of_request, too_long
from whiten_serving.http.models import ServedModel
from whiten_serving.http.service import Service, Wanted

Spans = Sequence[Sequence[int]]
"""First character of each passage and the one after its last."""


async def embed_passages(
    service: Service, call: Call, served: ServedModel, wanted: Wanted, passages: int | Spans
) -> tuple[NDArray[Any], Spans]:
    """Return the vectors of the passages of a text, [n, k], and their spans.

    `passages` are the spans, or a number of tokens: then a passage ends behind so many tokens of the text, and the next
    one begins there.
    """
    text, encoder = _only_text(wanted), served.encoder
    arguments = service.options(call, served, wanted, False)
    options = encode_options(encoder, **arguments)
    interruption = Interruption()

    def measure() -> tuple[int, Spans]:
        whole = replace(options, truncate=False)
        (ids,) = embedder_of(encoder).tokenize([text], whole).ids
        if not isinstance(passages, int):
            return len(ids), passages
        return len(ids), windows_of(encoder.tokens(text, special=False), passages, len(text)).tolist()

    def compute() -> NDArray[Any]:
        with interruption:
            return encoder.encode_passages(text, spans, **{**arguments, "precision": "float32"})

    try:
        readers = served.queue.scheduler.readers
        call.tokens, spans = await readers.run(call.key, len(text), measure)
        if len(spans) > (most := service.settings.max_texts):
            message = f"the text has {len(spans)} passages; the limit is {most}: ask for longer ones"
            raise ApiError("too_many_texts", message, "passages")
        service.reserve(call, served, len(spans), arguments)
        vectors = await service.passes.run(call, call.tokens, compute)
    except TooLongError as error:
        advice = "cut it between passages, and send each part"
        raise too_long(error, served.manifest.max_seq_length, "input", call.dialect, advice) from error
    except UsageError as error:
        raise ApiError("unsupported_value", _with_our_names(error), "passages") from error
    except NoVectorError as error:
        raise ApiError("no_vector", _with_our_names(error), "passages") from error
    except WhitenError as error:
        raise of_request(error) from error
    finally:
        interruption.request()  # of a pass that nobody waits for
    service.check_zeros(call, vectors, "passages")
    return vectors if options.quantize is None else options.quantize(vectors), spans


def _with_our_names(error: WhitenError) -> str:
    """Return a message about arguments of `Encoder.encode_passages` with the names of a request's fields."""
    return str(error).replace("spans[", "passages[", 1).replace("texts[", "input[", 1)


def _only_text(wanted: Wanted) -> str:
    """Return the text whose passages are asked for; none is cut."""
    if len(wanted.texts) != 1:
        message = f"passages are those of one text, but input has {len(wanted.texts)}; send a request for each"
        raise ApiError("unsupported_value", message, "passages")
    if wanted.truncate or wanted.context is not None:
        message = "a text with passages is not cut; leave the cut out, or the passages"
        raise ApiError("unsupported_value", message, "passages")
    return wanted.texts[0]
