"""Run in the clients' environment: see driver.py."""

from driver import KEY, MODEL, Embed, drive
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding


def of_openai(url: str) -> BaseEmbedding:
    return OpenAILikeEmbedding(model_name=MODEL, api_base=f"{url}/v1", api_key=KEY)


def of_ollama(url: str) -> BaseEmbedding:
    return OllamaEmbedding(model_name=MODEL, base_url=url)


def queries(model: BaseEmbedding) -> Embed:
    return lambda texts: [model.get_query_embedding(text) for text in texts]


drive(
    {
        "documents": lambda url: of_openai(url).get_text_embedding_batch,
        "queries": lambda url: queries(of_openai(url)),
        "unit_documents": lambda url: of_ollama(url).get_text_embedding_batch,
        "unit_queries": lambda url: queries(of_ollama(url)),
    }
)
