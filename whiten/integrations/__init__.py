"""Use a bundle in other frameworks: one module for each, which needs that framework and nothing else.

Every class and function takes the bundle's directory, or an open `Encoder`, which may have other threads or providers.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import UsageError
from whiten_runtime.opened.encoder import Encoder


def open_encoder(encoder: Encoder | str | Path) -> Encoder:
    """Return the encoder, or open the bundle of this directory.

    Raises:
        UsageError: neither an encoder nor a path.
        BundleError: not a bundle, or an incomplete one.
    """
    if isinstance(encoder, Encoder):
        return encoder
    if not isinstance(encoder, str | Path):
        raise UsageError(f"the bundle is {encoder!r}; wanted its directory, or an Encoder")
    return Encoder(encoder)


class DocumentBackend:
    """Embeds documents and words, with the bundle's default prompt if it has one; goes before a framework's base class.

    Args:
        encoder: the bundle's directory, or an open encoder.

    Raises:
        BundleError: not a bundle, or an incomplete one.
    """

    embedding_model: Encoder

    def __init__(self, encoder: Encoder | str | Path) -> None:
        super().__init__(embedding_model=open_encoder(encoder))  # type: ignore[call-arg]

    def embed(self, documents: Sequence[str], verbose: bool = False) -> NDArray[np.float32]:
        """Return the vectors of the documents, float32 [n, k].

        Args:
            documents: texts.
            verbose: draw a bar on stderr.
        """
        vectors: NDArray[np.float32] = self.embedding_model.encode(list(documents), show_progress_bar=verbose)
        return vectors
