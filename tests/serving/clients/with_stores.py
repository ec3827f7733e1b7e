"""Run in the clients' environment: see driver.py."""

import uuid
from typing import Any

import chromadb
from chromadb.utils.embedding_functions import OllamaEmbeddingFunction, OpenAIEmbeddingFunction
from driver import KEY, MODEL, Embed, drive


def chroma(function: Any) -> Embed:
    def embed(texts: list[str]) -> Any:
        collection = chromadb.EphemeralClient().create_collection(uuid.uuid4().hex, embedding_function=function)
        ids = [str(index) for index in range(len(texts))]
        collection.add(ids=ids, documents=texts)
        assert collection.query(query_texts=texts[:1], n_results=1)["ids"] == [["0"]]
        rows = collection.get(ids=ids, include=["embeddings"])
        assert rows["ids"] == ids
        return rows["embeddings"]

    return embed


def chroma_openai(url: str) -> Embed:
    return chroma(OpenAIEmbeddingFunction(api_key=KEY, model_name=MODEL, api_base=f"{url}/v1"))


def chroma_ollama(url: str) -> Embed:
    return chroma(OllamaEmbeddingFunction(url=url, model_name=MODEL))


drive(
    {
        "chroma": chroma_openai,
        "unit_chroma": chroma_ollama,
    }
)
