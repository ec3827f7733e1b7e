"""Use a bundle in pipelines of Haystack: `BundleTextEmbedder` for queries, `BundleDocumentEmbedder` for documents."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from whiten.integrations.bundle_source import Adapter, BundleSource
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import TextError, described, needing_package

with needing_package("haystack-ai"):
    from haystack import Document, component, default_from_dict, default_to_dict


class _BundleEmbedder(Adapter):
    """Holds what both components have in common. The bundle is opened by `warm_up`, or when it is first needed.

    Haystack makes classes of its own from those of components, in which `super()` does not work.
    """

    def _set_up(self, bundle: Encoder | str | Path, space: str | None, **options: Any) -> None:
        self._source = BundleSource(bundle, space, how="correct `bundle` of this component in the stored pipeline")
        self._options = options

    def warm_up(self) -> None:
        """Open the bundle, as a Pipeline does before it runs.

        Raises:
            BundleError: not a bundle, or an incomplete one.
            UsageError: a bundle of another space than `space`.
        """
        self.encoder  # noqa: B018

    def to_dict(self) -> dict[str, Any]:
        """Return the component's arguments for Haystack's files of pipelines.

        An open encoder becomes its directory, or its name on the hub with the commit.
        """
        named = {"bundle": self._source.name, "space": self._source.space}
        stored: dict[str, Any] = default_to_dict(self, **named, **self._options)
        return stored

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Return the component that `to_dict` has described."""
        return default_from_dict(cls, data)


@component
class BundleTextEmbedder(_BundleEmbedder):
    """Embeds one text, such as a query, with the bundle's prompt for queries.

    Args:
        bundle: the bundle's directory, or an open encoder.
        normalize_embeddings: divide each vector by its L2 norm.
        truncate_dim: keep only the first coordinates, where `Encoder.encode` does.
        space: id of the space that the bundle must have, as `to_dict` stores it; None for any.

    Raises:
        MissingPackageError: haystack-ai is not installed; raised where this module is imported.
    """

    def __init__(
        self,
        bundle: Encoder | str | Path,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        space: str | None = None,
    ) -> None:
        self._set_up(bundle, space, normalize_embeddings=normalize_embeddings, truncate_dim=truncate_dim)

    @component.output_types(embedding=list[float])  # type: ignore[untyped-decorator]
    def run(self, text: str) -> dict[str, list[float]]:
        """Return the vector of a text as `embedding`.

        Raises:
            TextError: `text` is not a string.
            UsageError: the bundle's vectors cannot be truncated.
        """
        return {"embedding": self.encoder.encode_query([text], **self._options)[0].tolist()}


@component
class BundleDocumentEmbedder(_BundleEmbedder):
    """Embeds documents, with the bundle's prompt for documents.

    Args:
        bundle: the bundle's directory, or an open encoder.
        normalize_embeddings: divide each vector by its L2 norm.
        truncate_dim: keep only the first coordinates, where `Encoder.encode` does.
        meta_fields_to_embed: fields of a document's metadata that are put before its content.
        embedding_separator: what stands between them.
        space: id of the space that the bundle must have, as `to_dict` stores it; None for any.

    Raises:
        MissingPackageError: haystack-ai is not installed; raised where this module is imported.
    """

    def __init__(
        self,
        bundle: Encoder | str | Path,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        space: str | None = None,
    ) -> None:
        self._set_up(bundle, space, normalize_embeddings=normalize_embeddings, truncate_dim=truncate_dim)
        self._fields = meta_fields_to_embed or []
        self._separator = embedding_separator

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return copies of the documents, with their vectors, as `documents`.

        Raises:
            TextError: `documents` is no list or tuple, or an item is not a document.
            UsageError: the bundle's vectors cannot be truncated.
        """
        if not isinstance(documents, (list, tuple)):
            raise TextError(f"documents is {described(documents)}; wanted a list of Document")
        for index, item in enumerate(documents):
            if not isinstance(item, Document):
                raise TextError(f"documents[{index}] is {described(item)}; wanted a Document of Haystack")
        texts = [self._text(document) for document in documents]
        vectors = self.encoder.encode_document(texts, **self._options).tolist()
        return {
            "documents": [
                replace(document, embedding=vector) for document, vector in zip(documents, vectors, strict=True)
            ]
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the component's arguments, as the other component does."""
        stored = _BundleEmbedder.to_dict(self)
        stored["init_parameters"] |= {
            "meta_fields_to_embed": self._fields,
            "embedding_separator": self._separator,
        }
        return stored

    def _text(self, document: Document) -> str:
        values = (document.meta.get(name) for name in self._fields)
        parts = [str(value) for value in values if value is not None]
        return self._separator.join([*parts, document.content or ""])
