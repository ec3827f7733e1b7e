"""Run in the clients' environment: URL TEXTS.json OUT.npz."""

from given import MODEL, TEXTS, URL, save
from langchain_ollama import OllamaEmbeddings

model = OllamaEmbeddings(model=MODEL, base_url=URL)
save(unit=model.embed_documents(TEXTS), unit_queries=[model.embed_query(text) for text in TEXTS])
