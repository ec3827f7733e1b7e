"""Answer /info: what TEI says of its model, and what is peculiar to this server."""

import os
from collections.abc import Callable

from whiten_serving.batching.bounds import Bounds
from whiten_serving.http.about import version
from whiten_serving.http.call import Call, Reply
from whiten_serving.http.encoding import json_of
from whiten_serving.http.models import ServedModel
from whiten_serving.http.service import Service
from whiten_serving.http.state import State


async def info(service: Service, call: Call) -> Reply:
    """Answer GET /info: what TEI says of its model, and what is peculiar to this server; the first one by default."""
    name = call.values.get("model") or call.query("model") or service.models.names[0]
    return Reply(json_of(described(service, service.model(name))))


def described(service: Service, served: ServedModel) -> dict[str, object]:
    """Return what /info says of a model."""
    manifest, options, lanes = served.manifest, service.options, served.embeds.batcher.lanes
    return {
        "model_id": served.name,
        "model_sha": served.digest,
        "model_dtype": {"fp32": "float32", "fp16": "float16"}.get(manifest.precision, manifest.precision),
        "model_type": {"embedding": {"pooling": manifest.pooling or "none"}},
        "max_concurrent_requests": _most_requests(service.state, lanes.bounds),
        "max_input_length": manifest.max_seq_length,
        "max_batch_tokens": lanes.budget,
        "max_batch_requests": None,
        "max_client_batch_size": options.max_texts,
        "auto_truncate": options.on_long == "truncate",
        "tokenization_workers": _tokenizing_threads(),
        "version": version(),
        "sha": None,
        "docker_label": None,
        "whiten": {
            "models": list(service.models.names),
            "dimension": manifest.dimension,
            "space": served.encoder.space,
            "layers": list(manifest.layers),
            "whitening": manifest.whitening.method if manifest.whitening else "none",
            "similarity": manifest.similarity_fn_name,
            "prompts": list(manifest.prompts),
            "default_prompt_name": manifest.default_prompt_name,
            "normalize": _normalizes(service, served),
            "truncation_side": manifest.truncation_side,
            "providers": served.encoder.providers,
            "parity_cosine": service.state.parity.get(served.name),
            "lanes": lanes.count,
            "max_queue_tokens": lanes.bounds.queue_tokens,
            "max_wait": lanes.bounds.wait,
            "options": dict(service.state.settings) or options.told(),
        },
    }


def _most_requests(state: State, bounds: Bounds) -> int:
    """Return how many requests there can be at once: each has a connection, and a token at least while it waits."""
    return bounds.queue_tokens if state.connections is None else min(state.connections, bounds.queue_tokens)


def _tokenizing_threads() -> int:
    """Return how many threads tokenise: that of the event loop, and those of asyncio's default executor."""
    usable: Callable[[], int | None] = getattr(os, "process_cpu_count", os.cpu_count)  # as that executor counts them
    return 1 + min(32, (usable() or 1) + 4)


def _normalizes(service: Service, served: ServedModel) -> dict[str, bool]:
    """Return whether each route's vectors are divided by their norm, if a request does not say it."""
    asked, own = service.options.normalize, served.manifest.normalize
    routes = {"/v1/embeddings": False, "/embed": True, "/api/embed": True, "/api/embeddings": False}
    return {route: own or (default if asked is None else asked) for route, default in routes.items()}
