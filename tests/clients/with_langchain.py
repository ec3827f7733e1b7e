"""Run in the frameworks' environment, with whiten's folders in PYTHONPATH: BUNDLE TEXTS.json OUT.npz."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

from whiten.integrations.langchain import BundleEmbeddings

bundle, file, out = sys.argv[1:]
texts = json.loads(Path(file).read_text("utf-8"))
embeddings = BundleEmbeddings(bundle)
assert isinstance(embeddings, Embeddings)
store = InMemoryVectorStore(embeddings)
ids = store.add_texts(texts)
assert [found.page_content for found in store.similarity_search("How do herons fish?", k=1)] == [texts[0]]
assert store.as_retriever(search_kwargs={"k": 1}).invoke("Interest rates")[0].page_content == texts[1]
query = embeddings.embed_query(texts[2])
assert isinstance(query[0], float)
assert asyncio.run(embeddings.aembed_query(texts[2])) == query
np.savez(
    out,
    documents=[store.store[one]["vector"] for one in ids],
    queries=[embeddings.embed_query(text) for text in texts],
    unit_documents=BundleEmbeddings(bundle, normalize_embeddings=True).embed_documents(texts),
)
