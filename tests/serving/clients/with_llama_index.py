"""Run in the clients' environment: URL TEXTS.json OUT.npz."""

from given import MODEL, TEXTS, URL, save

try:
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
except ImportError:
    from llama_index.embeddings.openai import OpenAIEmbedding as OpenAILikeEmbedding

FULL = [text or " " for text in TEXTS]
model = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{URL}/v1", api_key="none", embed_batch_size=7)
print(type(model).__module__)
save(
    documents=model.get_text_embedding_batch(FULL),
    queries=[model.get_query_embedding(text) for text in FULL],
)
