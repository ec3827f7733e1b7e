"""Run in the clients' environment, against a server with little room: URL TEXTS.json OUT.npz.

Many requests at once are refused with 429 at first; the client waits as it is told, and asks again.
"""

import asyncio

import openai
from given import MODEL, TEXTS, URL, save


async def main() -> list[list[float]]:
    refused = 0

    async def note(answer: object) -> None:
        nonlocal refused
        refused += answer.status_code == 429

    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [note]})
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=200, http_client=http) as client:
        inputs = [[text, *(f"{number} {text}" for number in range(63))] for text in TEXTS]
        answers = await asyncio.gather(*(client.embeddings.create(model=MODEL, input=texts) for texts in inputs))
    assert refused, "nothing was refused"
    print(f"{refused} answers were 429")
    return [answer.data[0].embedding for answer in answers]


save(retried=asyncio.run(main()))
