"""Use a bundle as the embedding model of BERTopic: `BERTopic(embedding_model=BundleBackend("my-bundle"))`."""

from whiten.integrations import DocumentBackend
from whiten_runtime.errors import needing_package

with needing_package("bertopic"):
    from bertopic.backend import BaseEmbedder


class BundleBackend(DocumentBackend, BaseEmbedder):  # type: ignore[misc]
    """Embeds the documents and words of BERTopic, with the bundle's default prompt if it has one.

    Args:
        encoder: the bundle's directory, or an open encoder.

    Raises:
        BundleError: not a bundle, or an incomplete one.
        MissingPackageError: bertopic is not installed; raised where this module is imported.
    """
