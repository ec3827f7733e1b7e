"""Run in the frameworks' environment, with whiten's folders in PYTHONPATH: BUNDLE TEXTS.json OUT.npz."""

import json
import sys
from pathlib import Path

import numpy as np
from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.document_stores.in_memory import InMemoryDocumentStore

from whiten.integrations.haystack import BundleDocumentEmbedder, BundleTextEmbedder

OURS = "whiten.integrations.haystack"

bundle, file, out = sys.argv[1:]
texts = json.loads(Path(file).read_text("utf-8"))
store = InMemoryDocumentStore(embedding_similarity_function="cosine")
indexing = Pipeline()
indexing.add_component("embedder", BundleDocumentEmbedder(bundle))
indexing.add_component("writer", DocumentWriter(store))
indexing.connect("embedder.documents", "writer.documents")
indexing = Pipeline.loads(indexing.dumps(), allowed_modules=[OURS])  # a file of a pipeline opens the bundle again
indexing.run({"embedder": {"documents": [Document(content=text) for text in texts[:2]]}})
writer = indexing.get_component("writer")
asking = Pipeline()
asking.add_component("embedder", BundleTextEmbedder(bundle))
asking.add_component("retriever", InMemoryEmbeddingRetriever(writer.document_store, top_k=1))
asking.connect("embedder.embedding", "retriever.query_embedding")
asking = Pipeline.loads(asking.dumps(), allowed_modules=[OURS])
asking.get_component("retriever").document_store = writer.document_store
found = asking.run({"embedder": {"text": "How do herons fish?"}})["retriever"]["documents"]
assert [one.content for one in found] == [texts[0]]
documents = [Document(content=text) for text in texts]
embedded = BundleDocumentEmbedder(bundle).run(documents=documents)["documents"]
assert [one.content for one in embedded] == texts
assert all(one.embedding is None for one in documents)
titled = BundleDocumentEmbedder(bundle, meta_fields_to_embed=["title", "absent"], embedding_separator=" | ")
with_title = titled.run(documents=[Document(content=texts[0], meta={"title": "Birds"})])["documents"][0]
plain = BundleDocumentEmbedder(bundle).run(documents=[Document(content=f"Birds | {texts[0]}")])["documents"][0]
assert np.allclose(with_title.embedding, plain.embedding, atol=1e-5)
texter = BundleTextEmbedder(bundle)
unit = BundleTextEmbedder.from_dict(BundleTextEmbedder(bundle, normalize_embeddings=True).to_dict())
np.savez(
    out,
    documents=[one.embedding for one in embedded],
    queries=[texter.run(text=text)["embedding"] for text in texts],
    unit_queries=[unit.run(text=text)["embedding"] for text in texts],
)
