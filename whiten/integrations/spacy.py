"""Use a bundle in spaCy: the pipeline component "whiten" gives documents their vectors."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from whiten.integrations.bundle_source import Adapter, BundleSource
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import NoVectorError, UsageError, needing_package
from whiten_runtime.inference.vectors import row_similarities

with needing_package("spacy"):
    from spacy.language import Language
    from spacy.tokens import Doc

NAME = "whiten"

_VECTOR, _SIMILARITY = "whiten.vector", "whiten.similarity"
"""Keys of `Doc.user_data`, which spaCy stores."""

_SPACE_FILE = "space.json"


def restore(doc: Doc) -> Doc:
    """Give a document its vector again after it came from bytes, a `DocBin` or another process (`n_process`).

    spaCy leaves hooks out there, and keeps `Doc.user_data`: of a `DocBin` only with `store_user_data=True`.

    Returns:
        The document.

    Raises:
        UsageError: there is no vector of the component "whiten" in its user data.
    """
    if _VECTOR not in doc.user_data:
        raise UsageError(
            "the document has no vector of the component 'whiten' in its user_data; run the component, and store "
            "documents with their user data, as in DocBin(store_user_data=True)"
        )
    doc.user_hooks |= {"vector": _vector, "has_vector": _has_vector, "vector_norm": _norm, "similarity": _similarity}
    return doc


def _vector(doc: Doc) -> NDArray[np.float32]:
    return np.asarray(doc.user_data[_VECTOR], np.float32)


def _has_vector(doc: Doc) -> bool:
    return True


def _norm(doc: Doc) -> float:
    return float(np.linalg.norm(_vector(doc)))


def _similarity(doc: Doc, other: Any) -> float:
    """Return the model's similarity of two documents; 0 where the other object has no such vector, as in spaCy."""
    first, second = _vector(doc), np.asarray(other.vector, np.float32)
    if first.shape != second.shape:
        return 0.0
    return float(row_similarities(first[None], second[None], doc.user_data[_SIMILARITY])[0])


_HOW = 'open the pipeline by spacy.load(FOLDER, config={"components": {"whiten": {"bundle": PATH}}})'


class BundleVectors(Adapter):
    """Sets `Doc.vector` to the vector of the document's text, and `Doc.similarity` to the model's own similarity.

    `nlp.add_pipe("whiten", config={"bundle": "my-bundle"})` adds it to a pipeline, once this module is imported. A
    stored pipeline has the id of the space; a bundle of another space is refused. `restore` gives documents from other
    processes and from bytes their vectors again.

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
        self._hold(encoder, _HOW)
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
                doc.user_data |= {_VECTOR: vector, _SIMILARITY: self.encoder.manifest.similarity_fn_name}
                yield restore(doc)

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """Return the id of the space, which spaCy stores with the pipeline beside its configuration."""
        return json.dumps({"space": self._source.space}).encode()

    def from_bytes(self, data: bytes, *, exclude: Iterable[str] = ()) -> Self:
        """Check that the bundle gives vectors of the space that was stored.

        Raises:
            UsageError: of another one.
        """
        self._source = BundleSource(self.encoder, json.loads(data)["space"], how=_HOW)
        return self

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        """Write what `to_bytes` returns."""
        Path(path).mkdir(exist_ok=True)
        (Path(path) / _SPACE_FILE).write_bytes(self.to_bytes())

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> Self:
        """Check what `to_disk` has written, as `from_bytes` does."""
        return self.from_bytes((Path(path) / _SPACE_FILE).read_bytes())


_DEFAULTS = {"prompt_name": None, "normalize_embeddings": False}


@Language.factory(NAME, assigns=["doc.vector"], default_config=_DEFAULTS)  # type: ignore[untyped-decorator]
def _make(nlp: Language, name: str, bundle: str, prompt_name: str | None, normalize_embeddings: bool) -> BundleVectors:
    return BundleVectors(bundle, prompt_name, normalize_embeddings)
