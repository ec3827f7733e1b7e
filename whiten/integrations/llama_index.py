"""Use a bundle as the embedding model of LlamaIndex: `BundleEmbedding`."""

from asyncio import to_thread
from pathlib import Path
from typing import Any

from whiten.integrations.bundle_source import BundleSource
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError, needing_package
from whiten_runtime.inference.options import Prompts

with needing_package("llama-index-core"):
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import Field, PrivateAttr

_MOST_PER_CALL = 2048
"""The most that LlamaIndex passes on at once, which serves an encoder best: it makes batches of its own."""


class BundleEmbedding(BaseEmbedding):  # type: ignore[misc]
    """Embeds the nodes and queries of LlamaIndex.

    They get the bundle's prompts for documents and queries. What `to_dict` writes, `from_dict` opens again. The id of
    the space is part of it, so that caches of ingestion keep the vectors of each space apart.

    Args:
        bundle: the bundle's directory, or an open encoder.
        normalize_embeddings: divide each vector by its L2 norm.
        truncate_dim: keep only the first coordinates, where `Encoder.encode` does.
        space: id of the space that the bundle must have, as `to_dict` stores it; None for any.
        options: fields of LlamaIndex's `BaseEmbedding`, such as `callback_manager`.

    Raises:
        BundleError: not a bundle, or an incomplete one.
        UsageError: a bundle of another space than `space`; or an `embeddings_cache` is given, which has one vector for
            a text, and the bundle embeds queries and documents with different prompts.
        MissingPackageError: llama-index-core is not installed; raised where this module is imported.
    """

    bundle: str = Field(description="Directory of the bundle, or its name on the hub with the commit.")
    space: str = Field(description="Id of the space of the vectors.")
    normalize_embeddings: bool = Field(default=False, description="Divide each vector by its L2 norm.")
    truncate_dim: int | None = Field(default=None, description="Number of leading coordinates to keep.")
    _source: BundleSource = PrivateAttr()

    def __init__(
        self,
        bundle: Encoder | str | Path,
        *,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        space: str | None = None,
        **options: Any,
    ) -> None:
        source = BundleSource(bundle, space, how='pass from_dict(stored | {"bundle": PATH})')
        fields = {"model_name": source.encoder.manifest.name, "embed_batch_size": _MOST_PER_CALL} | options
        super().__init__(
            bundle=source.name,
            space=source.space,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            **fields,
        )
        self._source = source
        self._check_cache()

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex stores this class."""
        return "WhitenBundleEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._encoder().encode_query(query, **self._options()).tolist()
        return vector

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._encoder().encode_document(texts, **self._options()).tolist()
        return vectors

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await to_thread(self._get_text_embeddings, texts)

    def _encoder(self) -> Encoder:
        self._check_cache()
        return self._source.encoder

    def _check_cache(self) -> None:
        """Refuse a cache that gives a query the vector of a document of the same text."""
        prompts = Prompts.of(self._source.encoder.manifest)
        if self.embeddings_cache is not None and prompts.for_task("query") != prompts.for_task("document"):
            raise UsageError(
                "embeddings_cache keeps one vector for a text, but this bundle embeds queries and documents with "
                "different prompts; leave it out, or cache documents by IngestionPipeline(cache=...)"
            )

    def _options(self) -> dict[str, Any]:
        return {"normalize_embeddings": self.normalize_embeddings, "truncate_dim": self.truncate_dim}
