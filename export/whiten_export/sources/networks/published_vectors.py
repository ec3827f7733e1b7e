"""Compute vectors with sentence-transformers itself, in float32: what people mean by a model that it publishes."""

from collections.abc import Sequence
from importlib.metadata import version

import numpy as np
import torch

from whiten_export.proof.gate import PublishedVectors, Request
from whiten_export.sources.checkpoints.checkpoint import Checkpoint
from whiten_export.sources.networks.hugging_face import one_thread, quiet
from whiten_runtime.checks import needing
from whiten_runtime.errors import WhitenError


def encode_published(
    checkpoint: Checkpoint, requests: Sequence[Request], max_seq_length: int, trust_remote_code: bool, device: str
) -> PublishedVectors:
    """Load a folder with sentence-transformers and embed texts, each alone, so that padding plays no part."""
    published = checkpoint.published
    assert published is not None
    with needing("export"):
        from sentence_transformers import SentenceTransformer
    root = checkpoint.root or checkpoint.directory
    try:
        with quiet(), one_thread():
            model = SentenceTransformer(
                str(root),
                device=device,
                trust_remote_code=trust_remote_code,
                local_files_only=True,
                model_kwargs={"dtype": torch.float32},
            )
            model.float().eval()
            for module in model.modules():
                if type(module).__name__ == "Transformer":  # static embeddings have no such limit
                    module.max_seq_length = max_seq_length
            task = {} if published.route is None else {"task": published.route}
            vectors = [
                model.encode(list(request.texts), prompt=request.prompt, batch_size=1, show_progress_bar=False, **task)
                for request in requests
            ]
    except Exception as error:  # its exceptions share no base class
        reason = " ".join(str(error).split())[:300]
        raise WhitenError(f"sentence-transformers cannot load '{checkpoint.model}': {reason}") from error
    name = f"sentence-transformers {version('sentence-transformers')}, float32"
    return PublishedVectors(name, tuple(np.asarray(part, np.float64) for part in vectors))
