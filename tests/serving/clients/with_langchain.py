"""Run in the clients' environment: URL TEXTS.json OUT.npz ollama|openai|refused.

By default LangChain sends OpenAI's routes ids of the tokenizer cl100k, whose file is in TIKTOKEN_CACHE_DIR.
"""

import sys

import openai
from given import MODEL, TEXTS, URL, save
from langchain_ollama import OllamaEmbeddings
from langchain_openai import OpenAIEmbeddings

way = sys.argv[4]
options = {"check_embedding_ctx_length": False} if way == "openai" else {"tiktoken_model_name": "cl100k_base"}
model = OpenAIEmbeddings(model=MODEL, base_url=f"{URL}/v1", api_key="none", **options)
if way == "ollama":
    model = OllamaEmbeddings(model=MODEL, base_url=URL)
    save(unit=model.embed_documents(TEXTS), unit_queries=[model.embed_query(text) for text in TEXTS])
elif way == "openai":
    save(documents=model.embed_documents(TEXTS), queries=[model.embed_query(text) for text in TEXTS])
else:
    try:
        model.embed_documents(TEXTS)
    except openai.BadRequestError as error:
        assert "check_embedding_ctx_length=False" in str(error), error
        print(error)
    else:
        raise AssertionError("token ids were taken")
    save()
