"""Run in the clients' environment: URL TEXTS.json OUT.npz."""

import ollama
from given import MODEL, TEXTS, URL, save

client = ollama.Client(host=URL)
names = [model.model for model in client.list().models]
assert len(names) == 2, names
save(
    unit=client.embed(model=names[0], input=TEXTS).embeddings,
    unit_name=client.embed(model=MODEL, input=TEXTS, truncate=True).embeddings,
    plain=[client.embeddings(model=MODEL, prompt=text).embedding for text in TEXTS],
)
try:
    client.embed(model="none", input="a")
except ollama.ResponseError as error:
    assert error.status_code == 404, error
    print(error)
else:
    raise AssertionError("a model that is not served was taken")
