"""Use a bundle in spaCy: the pipeline component "whiten" gives documents their vectors."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from whiten.integrations import open_encoder
from whiten_runtime.errors import NoVectorError, needing_package
from whiten_runtime.opened.encoder import Encoder

with needing_package("spacy"):
    from spacy.language import Language
    from spacy.tokens import Doc

NAME = "whiten"


class BundleVectors:
    """Sets `Doc.vector` to the vector of the document's text, and `Doc.similarity` to the model's own similarity.

    `nlp.add_pipe("whiten", config={"bundle": "my-bundle"})` adds it to a pipeline, once this module is imported.

    Args:
        encoder: the bundle's directory, or an open encoder.
        prompt_name: name of one of the bundle's prompts; None for its default one.
        normalize_embeddings: divide each vector by its L2 norm.

    Raises:
        BundleError: not a bundle, or an incomplete one.
        MissingPackageError: spacy is not installed; raised where this module is imported.
    """

    def __init__(
        self, encoder: Encoder | str | Path, prompt_name: str | None = None, normalize_embeddings: bool = False
    ) -> None:
        self.encoder = open_encoder(encoder)
        self._options: dict[str, Any] = {"prompt_name": prompt_name, "normalize_embeddings": normalize_embeddings}

    def __call__(self, doc: Doc) -> Doc:
        """Return the document with its vector."""
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 1024) -> Iterator[Doc]:
        """Yield documents with their vectors.

        Args:
            stream: documents.
            batch_size: number of documents that are embedded at once; their batches are the encoder's own.
        """
        documents, done = iter(stream), 0
        while part := list(islice(documents, batch_size)):
            try:
                vectors = self.encoder.encode([doc.text for doc in part], **self._options)
            except NoVectorError as error:
                raise error.moved(done) from None
            done += len(part)
            for doc, vector in zip(part, vectors, strict=True):
                doc.vector = vector
                doc.user_hooks["similarity"] = self._similarity
                yield doc

    def _similarity(self, doc: Doc, other: Any) -> float:
        return float(self.encoder.similarity(doc.vector, other.vector)[0, 0])


_DEFAULTS = {"prompt_name": None, "normalize_embeddings": False}


@Language.factory(NAME, assigns=["doc.vector"], default_config=_DEFAULTS)  # type: ignore[untyped-decorator]
def _make(nlp: Language, name: str, bundle: str, prompt_name: str | None, normalize_embeddings: bool) -> BundleVectors:
    return BundleVectors(bundle, prompt_name, normalize_embeddings)
