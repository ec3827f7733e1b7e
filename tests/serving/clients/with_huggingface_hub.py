"""Run in the clients' environment: URL TEXTS.json OUT.npz."""

import asyncio

import numpy as np
from given import TEXTS, URL, save
from huggingface_hub import AsyncInferenceClient, InferenceClient


async def at_once() -> list[np.ndarray]:
    client = AsyncInferenceClient(URL)
    return [rows[0] for rows in await asyncio.gather(*map(client.feature_extraction, TEXTS))]


client, embed = InferenceClient(URL), InferenceClient(f"{URL}/embed")
save(
    unit=client.feature_extraction(TEXTS),
    unit_embed=embed.feature_extraction(TEXTS, normalize=True),
    plain=client.feature_extraction(TEXTS, normalize=False),
    unit_at_once=asyncio.run(at_once()),
)
