"""Run in the clients' environment: URL TEXTS.json OUT.npz."""

import asyncio

import openai
from given import MODEL, TEXTS, URL, save

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
azure = openai.AzureOpenAI(azure_endpoint=URL, api_key="none", api_version="2024-10-21", azure_deployment=MODEL)


async def at_once() -> list[list[float]]:
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none") as many:
        answers = await asyncio.gather(*(many.embeddings.create(model=MODEL, input=text) for text in TEXTS))
    return [answer.data[0].embedding for answer in answers]


def got(source: openai.OpenAI, **options: object) -> list[list[float]]:
    answer = source.embeddings.create(model=MODEL, input=TEXTS, **options)
    assert [one.index for one in answer.data] == list(range(len(TEXTS)))
    assert answer.model == MODEL
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    return [one.embedding for one in answer.data]


assert MODEL in [model.id for model in client.models.list()]
assert client.models.retrieve(MODEL).id == MODEL
save(
    base64=got(client),
    floats=got(client, encoding_format="float"),
    azure=got(azure),
    at_once=asyncio.run(at_once()),
    short=got(client, dimensions=5),
)
codes = got(client, encoding_format="float", extra_body={"precision": "uint8"})
assert all(code in range(256) for row in codes for code in row), codes
assert len(codes[0]) == len(got(client)[0])
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
