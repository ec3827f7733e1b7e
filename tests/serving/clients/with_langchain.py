"""Run in the clients' environment: see driver.py.

By default LangChain sends OpenAI's routes ids of the tokenizer cl100k, whose file is in TIKTOKEN_CACHE_DIR.
"""

import openai
from driver import KEY, MODEL, TEXTS, URL, Embed, drive
from langchain_ollama import OllamaEmbeddings
from langchain_openai import OpenAIEmbeddings


def of_openai(url: str) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(model=MODEL, base_url=f"{url}/v1", api_key=KEY, check_embedding_ctx_length=False)


def of_ollama(url: str) -> OllamaEmbeddings:
    return OllamaEmbeddings(model=MODEL, base_url=url)


def many(url: str) -> Embed:
    """Return a function that embeds more texts than a request has, 1,000, and returns the last of them."""
    embed = of_openai(url).embed_documents
    return lambda texts: embed(texts * (1 + 1000 // len(texts)))[-len(texts) :]


def queries(model: OpenAIEmbeddings | OllamaEmbeddings) -> Embed:
    return lambda texts: [model.embed_query(text) for text in texts]


drive(
    {
        "documents": lambda url: of_openai(url).embed_documents,
        "queries": lambda url: queries(of_openai(url)),
        "many": many,
        "unit_documents": lambda url: of_ollama(url).embed_documents,
        "unit_queries": lambda url: queries(of_ollama(url)),
    }
)

for options in ({}, {"tiktoken_model_name": "cl100k_base"}):
    try:
        OpenAIEmbeddings(model=MODEL, base_url=f"{URL}/v1", api_key=KEY, **options).embed_documents(TEXTS)
    except openai.BadRequestError as error:
        assert error.code == "token_ids", error
        assert "check_embedding_ctx_length=False" in str(error), error
        print(error)
    else:
        raise AssertionError("token ids were taken")
