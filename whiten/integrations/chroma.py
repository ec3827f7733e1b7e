"""Use a bundle as the embedding function of Chroma: `BundleEmbeddingFunction`."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten.integrations.bundle_source import Adapter, BundleSource
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError, needing_package

with needing_package("chromadb"):
    from chromadb.api.types import Documents, EmbeddingFunction
    from chromadb.utils.embedding_functions import register_embedding_function

_HOW = (
    "pass embedding_function=BundleEmbeddingFunction(PATH) to get_collection, and store it by "
    'collection.modify(configuration={"embedding_function": BundleEmbeddingFunction(PATH)})'
)

_SPACES = {"cosine": "cosine", "dot": "ip", "euclidean": "l2"}


@register_embedding_function
class BundleEmbeddingFunction(Adapter, EmbeddingFunction[Documents]):  # type: ignore[misc]
    """Embeds the documents and queries of Chroma's collections, with the bundle's prompts for them.

    Chroma stores the bundle's directory, or its name on the hub with the commit, with the collection, and the id of its
    space. Import this module before a collection is opened again: it then has its embedding function. A bundle of
    another space in its place is refused. A function that is passed by hand is not compared with the stored one: Chroma
    compares only their names.

    Args:
        bundle: the bundle's directory, or an open encoder.
        normalize_embeddings: divide each vector by its L2 norm.
        truncate_dim: keep only the first coordinates, where `Encoder.encode` does.

    Raises:
        BundleError: not a bundle, or an incomplete one.
        MissingPackageError: chromadb is not installed; raised where this module is imported.
    """

    def __init__(
        self, bundle: Encoder | str | Path, normalize_embeddings: bool = False, truncate_dim: int | None = None
    ) -> None:
        self._hold(bundle)
        self._options: dict[str, Any] = {"normalize_embeddings": normalize_embeddings, "truncate_dim": truncate_dim}

    def __call__(self, input: Documents) -> list[NDArray[np.float32]]:
        """Return the vector of each document, with the bundle's prompt for documents."""
        return list(self.encoder.encode_document(input, **self._options))

    def embed_query(self, input: Documents) -> list[NDArray[np.float32]]:
        """Return the vector of each query, with the bundle's prompt for queries."""
        return list(self.encoder.encode_query(input, **self._options))

    def default_space(self) -> str:
        """Return Chroma's name of the similarity that the model was trained for; "l2" for the manhattan distance."""
        return _SPACES.get(self.encoder.manifest.similarity_fn_name, "l2")

    def supported_spaces(self) -> list[str]:
        """Return Chroma's names of the similarities that a collection may use."""
        return ["cosine", "l2", "ip"]

    def is_legacy(self) -> bool:
        """Return False: the function is stored with its settings. Chroma would open the bundle again to find out."""
        return False

    @staticmethod
    def name() -> str:
        """Return the name by which Chroma stores this class."""
        return "whiten"

    def get_config(self) -> dict[str, Any]:
        """Return what Chroma stores with a collection."""
        return {"bundle": self._source.name, "space": self._source.space, **self._options}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> "BundleEmbeddingFunction":
        """Return the function that a collection was made with; its bundle is opened when a text is embedded.

        Then a `BundleError` says that the bundle is not there any more, or a `UsageError` that another one is in its
        place, whose vectors cannot be compared with those of the collection.
        """
        function = BundleEmbeddingFunction.__new__(BundleEmbeddingFunction)
        function._source = BundleSource(config["bundle"], config["space"], how=_HOW)
        function._options = {name: config[name] for name in ("normalize_embeddings", "truncate_dim")}
        return function

    def validate_config_update(self, old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        """Check that a collection keeps the space of its vectors.

        Raises:
            UsageError: vectors of the new bundle or options cannot be compared with those of the collection.
        """
        _check_space(old_config, new_config)

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        """Check what Chroma has read of a collection.

        Raises:
            UsageError: a field is missing.
        """
        if missing := sorted({"bundle", "space", "normalize_embeddings", "truncate_dim"} - set(config)):
            raise UsageError(
                f"the collection's embedding function lacks {', '.join(missing)}; make the collection again"
            )


def _check_space(old: dict[str, Any], new: dict[str, Any]) -> None:
    for name in ("space", "normalize_embeddings", "truncate_dim"):
        if old[name] != new[name]:
            raise UsageError(
                f"the collection's vectors have {name} {old[name]!r}, but {new['bundle']} gives {new[name]!r}; "
                "open it with the bundle that it was made with, or make it again"
            )
