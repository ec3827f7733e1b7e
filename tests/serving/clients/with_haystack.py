"""Run in the clients' environment: see driver.py."""

import logging
from typing import Any

from driver import KEY, MODEL, Embed, drive
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
from haystack_integrations.components.embedders.ollama import OllamaDocumentEmbedder, OllamaTextEmbedder


class NoEmbeddingError(Exception):
    """Raised here where documents have no embedding: Haystack only logs an error of OpenAI's client."""


def openai(kind: Any, url: str) -> Any:
    return kind(api_key=Secret.from_token(KEY), model=MODEL, api_base_url=f"{url}/v1")


def queries(embedder: Any) -> Embed:
    return lambda texts: [embedder.run(text)["embedding"] for text in texts]


def documents(embedder: Any) -> Embed:
    def embed(texts: list[str]) -> list[list[float]]:
        messages: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("haystack").addHandler(handler)
        try:
            rows = [item.embedding for item in embedder.run([Document(content=text) for text in texts])["documents"]]
        finally:
            logging.getLogger("haystack").removeHandler(handler)
        if None in rows:
            raise NoEmbeddingError(*messages)
        return rows

    return embed


drive(
    {
        "queries": lambda url: queries(openai(OpenAITextEmbedder, url)),
        "documents": lambda url: documents(openai(OpenAIDocumentEmbedder, url)),
        "unit_queries": lambda url: queries(OllamaTextEmbedder(model=MODEL, url=url)),
        "unit_documents": lambda url: documents(OllamaDocumentEmbedder(model=MODEL, url=url)),
    }
)
