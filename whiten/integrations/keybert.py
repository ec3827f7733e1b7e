"""Use a bundle as the model of KeyBERT: `KeyBERT(model=BundleBackend("my-bundle"))`."""

from whiten.integrations import DocumentBackend
from whiten_runtime.errors import needing_package

with needing_package("keybert"):
    from keybert.backend import BaseEmbedder


class BundleBackend(DocumentBackend, BaseEmbedder):  # type: ignore[misc]
    """Embeds documents and candidate words of KeyBERT, with the bundle's default prompt if it has one.

    Args:
        encoder: the bundle's directory, or an open encoder.

    Raises:
        BundleError: not a bundle, or an incomplete one.
        MissingPackageError: keybert is not installed; raised where this module is imported.
    """
