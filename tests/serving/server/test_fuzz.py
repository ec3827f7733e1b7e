"""Bodies of all kinds through sockets: the process answers each, and never with an error of its own."""

import json
import random
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from support.nasty_texts import NASTY
from support.server import RunningServer, parsed
from whiten_serving.http.routes import ROUTES

POSTS = sorted({route.path for route in ROUTES if route.request is not None and "{" not in route.path})
REFUSING = {route.path for route in ROUTES if route.refuses}
"""Routes that answer 424 to all; elsewhere it says that the server failed."""
FIELDS = ("input", "inputs", "prompt", "model", "ids", "dimensions", "precision", "truncate", "options", "parameters")


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(7 if depth < 3 else 5)
    if kind == 5:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 6:
        return {chance.choice(FIELDS): value(chance, depth + 1) for _ in range(chance.randrange(4))}
    return (None, True, chance.randrange(-9, 10**6), chance.choice(NASTY), "a text")[kind]


def body(chance: random.Random) -> bytes:
    """Return a body: JSON of known fields, cut somewhere, with a byte changed, or as it is; or bytes alone."""
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(200))
    fields = {name: value(chance) for name in chance.sample(FIELDS, chance.randrange(4))}
    valid = {chance.choice(["input", "inputs", "prompt"]): chance.choice(NASTY)}
    found = bytearray(json.dumps(valid if chance.random() < 0.5 else fields).encode())
    if found and chance.random() < 0.3:
        found[chance.randrange(len(found))] = chance.randrange(256)
    return bytes(found[: chance.randrange(len(found) + 1)] if chance.random() < 0.2 else found)


@pytest.mark.parametrize("seed", range(3))
def test_bodies_of_all_kinds(tiny_bundle: Path, seed: int) -> None:
    chance = random.Random(seed)
    statuses: dict[int, int] = {}
    with RunningServer(tiny_bundle, "--no-access-log", "--log", "json") as server:
        connection = HTTPConnection(*server.address, timeout=20)
        for _ in range(700):
            path, sent = chance.choice(POSTS), body(chance)
            connection.request("POST", path, sent, {"content-type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status < 500, (path, sent, content)
            assert answer.status != 424 or path in REFUSING, (path, sent, content)
            json.loads(content)
            statuses[answer.status] = statuses.get(answer.status, 0) + 1
        connection.close()
        assert server.embed("a").status == 200
        assert [line for line in map(parsed, server.lines) if line.get("level") == "error"] == []
    assert min(statuses.get(200, 0), statuses.get(400, 0), statuses.get(422, 0)) > 10, statuses
