"""Use a bundle as the embedding model of LlamaIndex: `BundleEmbedding`."""

from asyncio import to_thread
from pathlib import Path
from typing import Any

from whiten.integrations import open_encoder
from whiten_runtime.errors import needing_package
from whiten_runtime.opened.encoder import Encoder

with needing_package("llama-index-core"):
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import Field, PrivateAttr

_MOST_AT_ONCE = 2048
"""The most that LlamaIndex passes on at once, which serves an encoder best: it makes batches of its own."""


class BundleEmbedding(BaseEmbedding):  # type: ignore[misc]
    """Embeds the nodes and queries of LlamaIndex.

    They get the bundle's prompts for documents and queries. What `to_dict` writes, `from_dict` opens again.

    Args:
        bundle: the bundle's directory, or an open encoder.
        normalize_embeddings: divide each vector by its L2 norm.
        truncate_dim: keep only the first coordinates, where `Encoder.encode` does.
        options: fields of LlamaIndex's `BaseEmbedding`, such as `callback_manager`.

    Raises:
        BundleError: not a bundle, or an incomplete one.
        MissingPackageError: llama-index-core is not installed; raised where this module is imported.
    """

    bundle: str = Field(description="Directory of the bundle.")
    normalize_embeddings: bool = Field(default=False, description="Divide each vector by its L2 norm.")
    truncate_dim: int | None = Field(default=None, description="Number of leading coordinates to keep.")
    _encoder: Encoder = PrivateAttr()

    def __init__(
        self,
        bundle: Encoder | str | Path,
        *,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **options: Any,
    ) -> None:
        encoder = open_encoder(bundle)
        fields = {"model_name": encoder.manifest.name, "embed_batch_size": _MOST_AT_ONCE} | options
        super().__init__(
            bundle=str(encoder.path),
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            **fields,
        )
        self._encoder = encoder

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex stores this class."""
        return "WhitenBundleEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._encoder.encode_query(query, **self._options()).tolist()
        return vector

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._encoder.encode_document(texts, **self._options()).tolist()
        return vectors

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await to_thread(self._get_text_embeddings, texts)

    def _options(self) -> dict[str, Any]:
        return {"normalize_embeddings": self.normalize_embeddings, "truncate_dim": self.truncate_dim}
