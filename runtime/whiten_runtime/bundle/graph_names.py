"""Name the inputs and outputs of a bundle's graph."""

from whiten_runtime.bundle.manifest import Manifest

VECTORS_INPUT = "vectors"
"""The input of a graph that whitens precomputed embeddings, float32 [batch_size, d]."""

OUTPUT = "sentence_embedding"
"""The finished vectors (the output of the head), float32 [batch_size, k]."""

UNWHITENED_OUTPUT = "unwhitened_embedding"
"""The vectors before whitening, normalisation and rounding, float32 [batch_size, d]."""


def unwhitened_output(manifest: Manifest) -> str:
    """Return the name of the value that holds the vectors before whitening, normalisation and rounding."""
    changed = manifest.whitening is not None or manifest.normalize or manifest.vectors != "float32"
    return UNWHITENED_OUTPUT if changed else OUTPUT
