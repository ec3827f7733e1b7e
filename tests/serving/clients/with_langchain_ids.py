"""Run in the clients' environment: URL TEXTS.json OUT.npz refused|decoded.

LangChain sends ids of OpenAI's tokenizer cl100k by default, whose file is in TIKTOKEN_CACHE_DIR.
"""

import sys

import openai
from given import MODEL, TEXTS, URL, save
from langchain_openai import OpenAIEmbeddings

model = OpenAIEmbeddings(model=MODEL, tiktoken_model_name="cl100k_base", base_url=f"{URL}/v1", api_key="none")
if sys.argv[4] == "decoded":
    save(documents=model.embed_documents(TEXTS))
else:
    try:
        model.embed_documents(TEXTS)
    except openai.BadRequestError as error:
        assert "check_embedding_ctx_length=False" in str(error), error
        print(error)
    else:
        raise AssertionError("token ids were taken")
    save()
