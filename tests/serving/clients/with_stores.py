"""Run in the clients' environment: see driver.py. Chroma gets vectors by itself, Qdrant by the client of OpenAI."""

import uuid
from typing import Any

import chromadb
import openai
from chromadb.utils.embedding_functions import OllamaEmbeddingFunction, OpenAIEmbeddingFunction
from driver import KEY, MODEL, Embed, drive
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams


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


def qdrant(url: str, distance: Distance) -> Embed:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)

    def embed(texts: list[str]) -> list[Any]:
        rows = [item.embedding for item in client.embeddings.create(model=MODEL, input=texts).data]
        store = QdrantClient(":memory:")
        store.create_collection("texts", VectorParams(size=len(rows[0]), distance=distance))
        store.upsert("texts", [PointStruct(id=index, vector=row) for index, row in enumerate(rows)])
        if distance == Distance.COSINE:
            assert store.query_points("texts", query=rows[0], limit=1).points[0].id == 0
        points = store.retrieve("texts", range(len(texts)), with_vectors=True)
        return [point.vector for point in sorted(points, key=lambda point: point.id)]

    return embed


drive(
    {
        "chroma": chroma_openai,
        "unit_chroma": chroma_ollama,
        "qdrant": lambda url: qdrant(url, Distance.DOT),
        "unit_qdrant": lambda url: qdrant(url, Distance.COSINE),
    }
)
