"""Run in the clients' environment: URL TEXTS.json OUT.npz."""

from given import MODEL, TEXTS, URL, save
from langchain_openai import OpenAIEmbeddings

model = OpenAIEmbeddings(model=MODEL, base_url=f"{URL}/v1", api_key="none", check_embedding_ctx_length=False)
save(documents=model.embed_documents(TEXTS), queries=[model.embed_query(text) for text in TEXTS])
