"""Use a bundle as the embeddings of LangChain: `BundleEmbeddings`."""

from pathlib import Path
from typing import Any

from whiten.integrations.bundle_source import Adapter
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import TextError, described, needing_package

with needing_package("langchain-core"):
    from langchain_core.embeddings import Embeddings


class BundleEmbeddings(Adapter, Embeddings):  # type: ignore[misc]
    """Embeds the documents and queries of LangChain's vector stores and retrievers.

    Queries and documents get the bundle's prompts for them, as in `Encoder.encode_query` and `encode_document`.

    Args:
        encoder: the bundle's directory, or an open encoder.
        normalize_embeddings: divide each vector by its L2 norm; for stores that compare by the dot product.
        truncate_dim: keep only the first coordinates, where `Encoder.encode` does.

    Raises:
        BundleError: not a bundle, or an incomplete one.
        MissingPackageError: langchain-core is not installed; raised where this module is imported.
    """

    def __init__(
        self, encoder: Encoder | str | Path, *, normalize_embeddings: bool = False, truncate_dim: int | None = None
    ) -> None:
        self._hold(encoder, "make new BundleEmbeddings(PATH)")
        self._options: dict[str, Any] = {"normalize_embeddings": normalize_embeddings, "truncate_dim": truncate_dim}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vector of each text, with the prompt of documents.

        Raises:
            TextError: `texts` is one string, or an item is not a string.
            UsageError: the bundle's vectors cannot be truncated.
        """
        if isinstance(texts, str):
            raise TextError(f"texts is {described(texts)}; wanted a list of str, or embed_query for one text")
        vectors: list[list[float]] = self.encoder.encode_document(texts, **self._options).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a text, with the prompt of queries.

        Raises:
            TextError: `text` is not a string.
            UsageError: the bundle's vectors cannot be truncated.
        """
        vector: list[float] = self.encoder.encode_query([text], **self._options)[0].tolist()
        return vector
