"""Run in the clients' environment: see driver.py."""

import asyncio
from typing import Any

from driver import Embed, drive
from huggingface_hub import AsyncInferenceClient, InferenceClient


def way(path: str, **options: bool) -> Any:
    def for_server(url: str) -> Embed:
        client = InferenceClient(f"{url}{path}")
        return lambda texts: client.feature_extraction(texts, **options)

    return for_server


def at_once(url: str) -> Embed:
    async def embed(texts: list[str]) -> list[Any]:
        client = AsyncInferenceClient(url)
        return [rows[0] for rows in await asyncio.gather(*map(client.feature_extraction, texts))]

    return lambda texts: asyncio.run(embed(texts))


drive(
    {
        "unit": way(""),
        "unit_embed": way("/embed", normalize=True),
        "plain": way("", normalize=False),
        "unit_at_once": at_once,
    }
)
