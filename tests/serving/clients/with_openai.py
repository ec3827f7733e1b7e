"""Run in the clients' environment: see driver.py."""

import asyncio
from typing import Any

import openai
from driver import KEY, MODEL, TEXTS, URL, Embed, drive


def rows(client: openai.OpenAI, texts: list[str], **options: Any) -> list[list[float]]:
    answer = client.embeddings.create(model=MODEL, input=texts, **options)
    assert [item.index for item in answer.data] == list(range(len(texts)))
    assert answer.model == MODEL
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    return [item.embedding for item in answer.data]


def sync(url: str, **options: Any) -> Embed:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)
    return lambda texts: rows(client, texts, **options)


def azure(url: str) -> Embed:
    client = openai.AzureOpenAI(azure_endpoint=url, api_key=KEY, api_version="2024-10-21", azure_deployment=MODEL)
    return lambda texts: rows(client, texts)


def tasks(url: str, at_once: bool = False, **options: Any) -> Embed:
    async def embed(texts: list[str]) -> list[list[float]]:
        inputs: list[Any] = texts if at_once else [texts]
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, **options) as client:
            answers = await asyncio.gather(*(client.embeddings.create(model=MODEL, input=one) for one in inputs))
        return [item.embedding for answer in answers for item in answer.data]

    return lambda texts: asyncio.run(embed(texts))


drive(
    {
        "sync": sync,
        "floats": lambda url: sync(url, encoding_format="float"),
        "short": lambda url: sync(url, dimensions=5),
        "azure": azure,
        "async": tasks,
        "at_once": lambda url: tasks(url, at_once=True, max_retries=200),
    }
)

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY)
assert MODEL in [model.id for model in client.models.list()]
assert client.models.retrieve(MODEL).id == MODEL
codes = rows(client, TEXTS, encoding_format="float", extra_body={"precision": "uint8"})
assert all(code in range(256) for row in codes for code in row), codes
assert len(codes[0]) == len(rows(client, TEXTS)[0])
for call, kind, status, code in (
    (lambda: client.embeddings.create(model="none", input="a"), openai.NotFoundError, 404, "model_not_found"),
    (lambda: client.embeddings.create(model=MODEL, input=[1, 2]), openai.BadRequestError, 400, "token_ids"),
    (lambda: client.embeddings.create(model=MODEL, input=[]), openai.BadRequestError, 400, "empty_input"),
    (lambda: client.embeddings.create(model=MODEL, input="a", dimensions=999), openai.BadRequestError, 400, None),
    (
        lambda: client.embeddings.create(model=MODEL, input="a", extra_body={"precision": "uint8"}),  # in base64
        openai.BadRequestError,
        400,
        "unsupported_value",
    ),
):
    try:
        call()
    except openai.APIStatusError as error:
        assert isinstance(error, kind), error
        assert error.status_code == status, error
        assert code is None or error.code == code, (error.code, code)
        print(f"{type(error).__name__}: {error}")
    else:
        raise AssertionError(f"no error of status {status}")
