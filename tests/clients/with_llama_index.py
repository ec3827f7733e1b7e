"""Run in the frameworks' environment, with whiten's folders in PYTHONPATH: BUNDLE TEXTS.json OUT.npz."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
from llama_index.core import Document, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.llms import MockLLM

from whiten.integrations.llama_index import BundleEmbedding

bundle, file, out = sys.argv[1:]
texts = json.loads(Path(file).read_text("utf-8"))
model = BundleEmbedding(bundle)
stored = model.to_dict()
assert (stored["bundle"], stored["class_name"]) == (bundle, "WhitenBundleEmbedding")
again = BundleEmbedding.from_dict(stored)
pairs = [Document(text=text, id_=str(index)) for index, text in enumerate(texts[:2])]
index = VectorStoreIndex.from_documents(pairs, embed_model=model)
assert index.as_retriever(similarity_top_k=1).retrieve("How do herons fish?")[0].text == texts[0]
answer = index.as_query_engine(llm=MockLLM(), similarity_top_k=1).query("Interest rates")
assert texts[1] in str(answer)
index.storage_context.persist(str(Path(out).with_suffix("")))
storage = StorageContext.from_defaults(persist_dir=str(Path(out).with_suffix("")))
reopened = load_index_from_storage(storage, embed_model=again)
assert reopened.as_retriever(similarity_top_k=1).retrieve("How do herons fish?")[0].text == texts[0]
assert asyncio.run(model.aget_text_embedding_batch(texts[:3])) == model.get_text_embedding_batch(texts[:3])
np.savez(
    out,
    documents=model.get_text_embedding_batch(texts),
    queries=[again.get_query_embedding(text) for text in texts],
    unit_documents=[BundleEmbedding(bundle, normalize_embeddings=True).get_text_embedding(text) for text in texts],
)
