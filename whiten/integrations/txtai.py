"""Use a bundle in txtai: `Embeddings(path="my-bundle", method="whiten.integrations.txtai.BundleVectors")`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten.integrations.bundle_source import BundleSource
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError, needing_package
from whiten_runtime.opened_bundle import encode_options

with needing_package("txtai"):
    from txtai.vectors import Vectors

_HOW = 'open the index by load(FOLDER, config={"path": PATH}), and save it'


class BundleVectors(Vectors):  # type: ignore[misc]
    """Embeds the documents and queries of a txtai index, with the bundle's prompts for them.

    txtai stores the directory, or the name on the hub with the commit, the id of the space and this class with an
    index, and opens them again with it. A bundle of another space is refused. It divides vectors by their norms. Its
    `instructions` come before the bundle's prompts are applied: leave them out.

    Args:
        config: configuration of the index. `path` is the bundle's directory, `vectors` an object with options of
            `Encoder`, such as `{"threads": 2}`, `dimensionality` the number of coordinates to keep.
        scoring: of txtai.
        models: of txtai.

    Raises:
        ImportError: by txtai, if the bundle cannot be opened or its vectors cannot be cut; its cause says why.
        MissingPackageError: txtai is not installed; raised where this module is imported.
    """

    def loadmodel(self, path: str) -> Encoder:
        """Open the bundle.

        Raises:
            BundleError: not a bundle, or an incomplete one.
            UsageError: a bundle of another space than that of the index; the bundle's vectors cannot be cut to
                `dimensionality`; or `maxlength` is given, which is of other models.
        """
        if "maxlength" in self.config:
            raise UsageError("maxlength: a bundle has its own maximum length; leave it out")
        options = self.config.get("vectors", {})
        source = BundleSource(Encoder(path, **options) if options else path, self.config.get("space"), how=_HOW)
        encoder = source.encoder
        self.config |= {"path": source.name, "space": source.space}
        encode_options(encoder, truncate_dim=self.config.get("dimensionality"), prompt="")
        return encoder

    def encode(self, data: Sequence[str], category: str | None = None) -> NDArray[np.float32]:
        """Return the vectors of texts, float32 [n, k].

        Args:
            data: texts.
            category: "query" for queries, "data" for documents.
        """
        encoder: Encoder = self.model
        embed: Any = encoder.encode_query if category == "query" else encoder.encode_document
        vectors: NDArray[np.float32] = embed(list(data))
        return vectors
