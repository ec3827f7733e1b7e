"""Run in the clients' environment: see driver.py."""

import asyncio

import numpy as np
import ollama
from driver import MODEL, TEXTS, URL, Embed, drive


def listed(url: str) -> Embed:
    """Return a function for the first model of the list."""
    client = ollama.Client(host=url)
    name = client.list().models[0].model
    return lambda texts: client.embed(model=name, input=texts).embeddings


def tasks(url: str) -> Embed:
    return lambda texts: asyncio.run(ollama.AsyncClient(host=url).embed(model=MODEL, input=texts)).embeddings


def prompts(url: str) -> Embed:
    client = ollama.Client(host=url)
    return lambda texts: [client.embeddings(model=MODEL, prompt=text).embedding for text in texts]


drive({"unit": listed, "unit_async": tasks, "plain": prompts})

client = ollama.Client(host=URL)
assert len(client.list().models) == 2
truncated = client.embed(model=MODEL, input=TEXTS, truncate=True).embeddings
assert np.abs(np.subtract(truncated, listed(URL)(TEXTS))).max() <= 1e-6  # of unit vectors
try:
    client.embed(model="none", input="a")
except ollama.ResponseError as error:
    assert error.status_code == 404, error
    print(error)
else:
    raise AssertionError("a model that is not served was taken")
