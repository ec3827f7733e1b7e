"""Run in the clients' environment: URL TEXTS.json OUT.npz."""

import litellm
from given import MODEL, TEXTS, URL, save


def got(model: str, base: str, **options: str) -> list[list[float]]:
    answer = litellm.embedding(model=model, input=TEXTS, api_base=base, api_key="none", **options)
    return [one["embedding"] for one in answer.data]


save(
    openai=got(f"openai/{MODEL}", f"{URL}/v1"),
    openai_floats=got(f"openai/{MODEL}", f"{URL}/v1", encoding_format="float"),
    huggingface=got(f"huggingface/{MODEL}", URL, input_type="feature-extraction"),  # else it asks the hub for it
)
try:
    litellm.embedding(model=f"openai/{MODEL}", input=["a"], dimensions=999, api_base=f"{URL}/v1", api_key="none")
except litellm.BadRequestError as error:
    print(error)
else:
    raise AssertionError("999 dimensions were given")
