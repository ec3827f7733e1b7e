"""Clients that ask a server over and over, until told to stop or until nothing listens any more."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Load:
    """Counts what the requests of a load met."""

    answers: Counter[int] = field(default_factory=Counter)  # by status
    lost: list[str] = field(default_factory=list)  # requests that were sent and not answered
    refused: int = 0  # connections, because nothing listens any more
    bodies: list[tuple[str, Any]] = field(default_factory=list)  # of answers, with the name of the request


async def closed_loop(
    address: tuple[str, int],
    clients: int,
    bodies: Callable[[int], tuple[str, object]],
    stop: Callable[[], bool],
    keep: bool = False,
) -> Load:
    """Let clients post one request after another to /v1/embeddings, each over a connection of its own.

    Args:
        address: host and port.
        clients: number of connections.
        bodies: function from the number of a request to its name and body.
        stop: function that is asked before each request.
        keep: whether bodies of answers are kept.
    """
    load, sent = Load(), 0

    async def one() -> None:
        nonlocal sent
        async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}", timeout=60) as client:
            while not stop() and not load.refused:
                name, body = bodies(sent)
                sent += 1
                try:
                    answer = await client.post("/v1/embeddings", json=body)
                except httpx.ConnectError:
                    load.refused += 1
                except httpx.TransportError as error:
                    load.lost.append(repr(error))
                else:
                    load.answers[answer.status_code] += 1
                    if keep and answer.status_code == 200:
                        load.bodies.append((name, answer.json()))

    await asyncio.gather(*(one() for _ in range(clients)))
    return load
