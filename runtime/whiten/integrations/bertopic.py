"""Use a bundle as the embedding model of BERTopic: `BERTopic(embedding_model=BundleBackend("my-bundle"))`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten.integrations.opening import framework, open_encoder
from whiten_runtime.encoder import Encoder

with framework("bertopic"):
    from bertopic.backend import BaseEmbedder


class BundleBackend(BaseEmbedder):  # type: ignore[misc]
    """Embeds the documents and words of BERTopic, with the bundle's default prompt if it has one.

    Args:
        encoder: the bundle's directory, or an open encoder.

    Raises:
        BundleError: not a bundle, or an incomplete one.
        MissingPackageError: bertopic is not installed; raised where this module is imported.
    """

    def __init__(self, encoder: Encoder | str | Path) -> None:
        super().__init__(embedding_model=open_encoder(encoder))

    def embed(self, documents: Sequence[str], verbose: bool = False) -> NDArray[np.float32]:
        """Return the vectors of the documents, float32 [n, k].

        Args:
            documents: texts.
            verbose: draw a bar on stderr.
        """
        encoder: Encoder = self.embedding_model
        return encoder.encode(list(documents), show_progress_bar=verbose)
