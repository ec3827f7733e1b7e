"""Embed the passages of one text from a single pass over it (late chunking), one such pass at a time."""

import time
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from whiten_runtime.errors import TooLongError, UsageError, WhitenError
from whiten_runtime.inference.options import with_prompt
from whiten_runtime.inference.passages import windows_of
from whiten_runtime.inference.sessions import Interruption
from whiten_runtime.opened.model import embedder_of
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
    text, options, encoder = _only_text(served, wanted), service.options(call, served, wanted, False), served.encoder
    most = embedder_of(encoder).max_characters
    interruption = Interruption()

    def measure() -> tuple[int, Spans]:
        if len(text) > most:
            raise TooLongError(len(text), most, "characters", "")
        spans = passages
        if isinstance(spans, int):
            spans = windows_of(encoder.tokens(text, special=False), spans, len(text)).tolist()
        return len(encoder.tokens(with_prompt(options["prompt"], [text])[0])), spans

    def compute() -> NDArray[Any]:
        begun = time.monotonic()
        with interruption:
            vectors = encoder.encode_passages(text, spans, **options)
        call.run_seconds = time.monotonic() - begun
        return vectors

    try:
        call.tokens, spans = await served.queue.scheduler.readers.run(call.key, min(len(text), most), measure)
        service.inputs.check_count(len(spans), "passages")
        service.reserve(call, served, len(spans), options)
        vectors = await service.passes.run(call.key, call.tokens, compute)
    except TooLongError as error:
        raise too_long(error, served.manifest.max_seq_length, "input", call.dialect) from error
    except UsageError as error:
        raise ApiError("unsupported_value", str(error).replace("spans[", "passages[", 1), "passages") from error
    except WhitenError as error:
        raise of_request(error) from error
    finally:
        interruption.request()  # of a pass that nobody waits for
    if wanted.precision == "float32":
        service.check_zeros(call, vectors, "passages")
    return vectors, spans


def _only_text(served: ServedModel, wanted: Wanted) -> str:
    """Return the text whose passages are asked for; none is cut."""
    if (pooling := served.manifest.pooling) != "mean":
        message = f"this model pools by {pooling}; passages need one that pools by mean: send each as a text"
        raise ApiError("unsupported_value", message, "passages")
    if len(wanted.texts) != 1:
        message = f"passages are those of one text, but input has {len(wanted.texts)}; send a request for each"
        raise ApiError("unsupported_value", message, "passages")
    if wanted.truncate or wanted.context is not None:
        message = "a text with passages is not cut; leave the cut out, or the passages"
        raise ApiError("unsupported_value", message, "passages")
    return wanted.texts[0]
