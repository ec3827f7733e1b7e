"""Use a bundle in other frameworks: one module for each, which needs that framework and nothing else.

Every class and function takes the bundle's directory, or an open `Encoder`, which may have other threads or providers.
What frameworks store of an adapter names the bundle and the space of its vectors; a bundle of another space is refused.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten.integrations.bundle_source import Adapter
from whiten.integrations.bundle_source import open_encoder as open_encoder
from whiten_runtime.encoder import Encoder


class DocumentBackend(Adapter):
    """Embeds documents and words, with the bundle's default prompt if it has one; goes before a framework's base class.

    Args:
        encoder: the bundle's directory, or an open encoder.

    Raises:
        BundleError: not a bundle, or an incomplete one.
    """

    def __init__(self, encoder: Encoder | str | Path) -> None:
        super().__init__()
        how = f"pass a new {type(self).__name__} to the framework in place of the stored one"
        self._hold(encoder, how)

    def embed(self, documents: Sequence[str], verbose: bool = False) -> NDArray[np.float32]:
        """Return the vectors of the documents, float32 [n, k].

        Args:
            documents: texts.
            verbose: draw a bar on stderr.
        """
        vectors: NDArray[np.float32] = self.encoder.encode(list(documents), show_progress_bar=verbose)
        return vectors
